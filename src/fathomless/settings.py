"""The options of estimators, as plain values: one list for Python and for the command line.

Every estimator is a dataclass of these; nothing here needs torch, so that ``fathomless --help`` answers at once.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch.nn import Module

    from fathomless.distributions import DepthLaw, DepthPrior
    from fathomless.inference.svi import Run
    from fathomless.layers import WeightPrior
    from fathomless.models.blocks import Architecture
    from fathomless.multipliers import FlowOptions

__all__ = [
    "STRUCTURES",
    "DepthRegressorSettings",
    "DepthSettings",
    "DepthUncertaintyRegressorSettings",
    "DepthUncertaintySettings",
    "DropoutRegressorSettings",
    "DropoutSettings",
    "EnsembleRegressorSettings",
    "EnsembleSettings",
    "FiniteRegressorSettings",
    "FiniteSettings",
    "MeanFieldRegressorSettings",
    "MeanFieldSettings",
    "NetworkSettings",
    "RegressorSettings",
    "SparseRegressorSettings",
    "SparseSettings",
    "TrainingSettings",
    "described",
    "documented",
    "options_of",
]

Kind = TypeVar("Kind", bound=type)


def _option(
    default: Any, kind: str, *special: Any, least: float | None = None, names: Sequence[str] = (), flag: str = ""
) -> Any:
    """Declare an option.

    Its kind is "whole", "real", "flag", "choice", "text", or "object": something that only Python can give. `special`
    are values, or types of values, that are allowed beside the kind, `names` the choices, `flag` the name on the
    command line if it is another one there.
    """
    known = {"kind": kind, "special": special, "least": least, "names": tuple(names), "flag": flag}
    return field(default=default, metadata=known)


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingSettings:
    """How a table is read and a network trained.

    Parameters
    ----------
    weight_draws : int
        Weight draws in predictions; used with drawn weights ("meanfield") alone.
    temperature : float
        T multiplies the divergence of the weights; 1 is the model.
    epochs : int or "auto"
        Passes over the data. "auto" makes about 4,000 steps, within 20 and 1,000 epochs.
    batch_size : int or "auto"
        Rows per step. "auto" is 256, and 512 from 10,000 rows on.
    learning_rate : float
        Rate of the weights.
    structure_rate : float or "auto"
        Rate of the law over structure relative to it. "auto" lets the law go equally far however many steps there are.
    structure_optimizer : {"adam", "natural"}
        Kind of step of the law over structure. The natural gradient finds the structure fast, also where the layers
        have not learned yet what they could.
    structure_radius : float
        Longest natural step.
    structure_delay : float
        Share of the epochs during which the law over structure stays where it starts.
    schedule : str or tuple
        Of the learning rate: "cosine", "constant", "one_cycle", or pieces as in
        :class:`~fathomless.inference.svi.Training`.
    patience : int or None
        Stop after so many validation scores without a better one; None never stops early.
    clip_norm : float or None
        Longest gradient; None does not clip.
    validation_fraction : float
        Share of the rows that is held out to choose the best epoch; 0 trains on all. Below 60 rows none are.
    n_restarts : int
        Networks trained from different initial weights, side by side; many of them cost less than as many fits.
    restarts : {"best", "average"}
        Keep the one with the best validation score (without held-out rows, the best bound), or average the predictions
        of all.
    calibrate : bool
        At the end, fit the scale of the noise (whatever the likelihood itself learns) to the held-out rows.
    missing : {"auto", "error", "impute"}
        Missing values are allowed in data frames ("auto"), nowhere ("error"), or in arrays too, and when predicting
        also in columns that were complete in training ("impute").
    unseen : {"error", "ignore"}
        A category that training did not see is an error, or counts as none of the known ones.
    max_levels : int
        A text column with more categories keeps the most frequent ones; the others share one level.
    device : str
        "cpu", "cuda", ...; "auto" takes a GPU if there is one.
    precision : {"auto", "float32", "float64", "bfloat16"}
        "auto" is double below 2,000 rows, where it costs nothing, else single.
    checkpoint : path, optional
        Folder for checkpoints. A fit that was interrupted goes on from there, to the same bytes.
    checkpoint_seconds : float
        Least time between two checkpoints; the first is written at the first row of the history.
    progress : bool
        Show a progress bar.
    callbacks : sequence of callables, optional
        Called with the :class:`~fathomless.inference.svi.Run` after every row of the history, that is, after the
        first epoch in every eight steps or so.
    warm_start : bool
        Go on from the fitted state at the next call of fit.
    random_state : int, RandomState, Generator or None
        Seed. The same seed, data, machine and number of threads give the same bytes.
    """

    weight_draws: int = _option(16, "whole", least=1)
    temperature: float = _option(1.0, "real")
    epochs: "int | str" = _option("auto", "whole", "auto", least=1)
    batch_size: "int | str" = _option("auto", "whole", "auto", least=1)
    learning_rate: float = _option(5e-3, "real")
    structure_rate: "float | str" = _option("auto", "real", "auto")
    structure_optimizer: str = _option("adam", "choice", names=("adam", "natural"))
    structure_radius: float = _option(0.1, "real")
    structure_delay: float = _option(0.0, "real", least=0)
    schedule: "str | tuple[tuple[int, float], ...]" = _option(
        "cosine", "choice", names=("cosine", "constant", "one_cycle")
    )
    patience: "int | None" = _option(30, "whole", None, least=1)
    clip_norm: "float | None" = _option(None, "real", None)
    validation_fraction: float = _option(0.1, "real")
    n_restarts: int = _option(1, "whole", least=1)
    restarts: str = _option("best", "choice", names=("best", "average"))
    calibrate: bool = _option(True, "flag")
    missing: str = _option("auto", "choice", names=("auto", "error", "impute"))
    unseen: str = _option("error", "choice", names=("error", "ignore"))
    max_levels: int = _option(100, "whole", least=2)
    device: str = _option("auto", "text")
    precision: str = _option("auto", "choice", names=("auto", "float32", "float64", "bfloat16"))
    checkpoint: "str | PathLike[str] | None" = _option(None, "object")
    checkpoint_seconds: float = _option(30.0, "real", least=0)
    progress: bool = _option(False, "object")
    callbacks: "Sequence[Callable[[Run], None]] | None" = _option(None, "object")
    warm_start: bool = _option(False, "object")
    random_state: Any = _option(None, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkSettings(TrainingSettings):
    """A network of layers and heads.

    Parameters
    ----------
    architecture : {"mlp", "residual", "transformer"} or callable
        What a layer is; or a function (inputs, outputs) -> Architecture.
    width : int
        Units per layer.
    activation : {"relu", "leaky_relu", "elu", "gelu", "silu", "tanh"}
        Between layers.
    """

    architecture: "str | Callable[[int, int], Architecture]" = _option(
        "mlp", "choice", names=("mlp", "residual", "transformer")
    )
    width: int = _option(64, "whole", least=1)
    activation: str = _option("relu", "choice", names=("relu", "leaky_relu", "elu", "gelu", "silu", "tanh"))


@dataclass(kw_only=True, eq=False, repr=False)
class DepthSettings(NetworkSettings):
    """A network of unbounded depth.

    Parameters
    ----------
    depth_law : str, int or DepthLaw
        Family of the posterior over depth: "poisson" (soft truncation), "two_sided", "taper", "quantile" (the
        paper's), "stick_breaking", "categorical" (ten depths); an integer is an ordinary network of that depth.
    initial_depth : float
        Where the posterior over depth starts: its mean offset above `min_depth` before clipping.
    depth_prior : float or DepthPrior
        Depth − min_depth ~ Poisson(depth_prior), or any prior.
    min_depth : int
        Least depth; with 0 a linear model is one of the networks.
    max_depth : int or None
        Greatest depth, if there must be one.
    weights : {"map", "meanfield", "sparse"}
        Point estimates with the prior's decay, an independent Gaussian per weight, or weights that may be absent.
    weight_prior : float or WeightPrior
        Standard deviation of the prior of every weight; or a prior that follows the shape of the layers.
    """

    depth_law: "str | int | DepthLaw" = _option(
        "poisson",
        "choice",
        int,
        names=("poisson", "two_sided", "taper", "quantile", "stick_breaking", "categorical"),
    )
    initial_depth: float = _option(2.0, "real")
    depth_prior: "float | DepthPrior" = _option(0.5, "real", object)
    min_depth: int = _option(0, "whole", least=0)
    max_depth: "int | None" = _option(None, "whole", None, least=0)
    weights: str = _option("map", "choice", names=("map", "meanfield", "sparse"))
    weight_prior: "float | WeightPrior" = _option(1.0, "real", object)


@dataclass(kw_only=True, eq=False, repr=False)
class FiniteSettings(NetworkSettings):
    """An ordinary network.

    Parameters
    ----------
    depth : int
        Layers before the head; 0 is a linear model.
    weight_prior : float or WeightPrior
        Standard deviation of the prior of every weight; or a prior that follows the shape of the layers.
    """

    depth: int = _option(3, "whole", least=0)
    weight_prior: "float | WeightPrior" = _option(1.0, "real", object)


@dataclass(kw_only=True, eq=False, repr=False)
class DepthUncertaintySettings(NetworkSettings):
    """A network with a posterior over a given number of depths.

    Parameters
    ----------
    depths : int
        Networks of 1, 2, … up to so many layers are averaged.
    shared_head : bool
        Read out every depth by the same head.
    weight_prior : float or WeightPrior
        Standard deviation of the prior of every weight; or a prior that follows the shape of the layers.
    """

    depths: int = _option(10, "whole", least=1)
    shared_head: bool = _option(True, "flag")
    weight_prior: "float | WeightPrior" = _option(1.0, "real", object)


@dataclass(kw_only=True, eq=False, repr=False)
class DropoutSettings(FiniteSettings):
    """An ordinary network with dropout, in training and in prediction.

    Parameters
    ----------
    dropout : float
        Probability that a unit is dropped, from 0 up to, not including, 1.
    """

    dropout: float = _option(0.1, "real", least=0)


@dataclass(kw_only=True, eq=False, repr=False)
class MeanFieldSettings(FiniteSettings):
    """An ordinary network with an independent Gaussian on every weight."""

    depth: int = _option(2, "whole", least=0)


@dataclass(kw_only=True, eq=False, repr=False)
class EnsembleSettings(FiniteSettings):
    """Several ordinary networks, whose predictions are averaged."""

    n_restarts: int = _option(5, "whole", least=1)
    restarts: str = _option("average", "choice", names=("best", "average"))


@dataclass(kw_only=True, eq=False, repr=False)
class SparseSettings(TrainingSettings):
    """A network whose weights may be absent.

    Parameters
    ----------
    posterior : {"lrt", "flow", "relaxed", "slab", "mnf"}
        Independent spikes and slabs, trained by sampling the outputs of layers ("lrt"), with slabs made dependent by
        flows ("flow"), or trained by relaxed draws of weights ("relaxed"); or all weights included, independent
        ("slab", mean field) or made dependent by flows ("mnf", multiplicative normalising flows).
    structure : {"average", "median"}
        Predict by averaging over structures, or by the weights that are included with probability above one half.
    architecture : {"mlp", "skip"} or callable
        A multilayer perceptron, or one whose layers all see the inputs too; or a function (inputs, outputs) ->
        nn.Module.
    depth : int
        Hidden layers; 0 is a linear model.
    width : int
        Units per hidden layer.
    activation : {"relu", "leaky_relu", "elu", "gelu", "silu", "tanh"}
        Between layers.
    prior_inclusion : float, "learned" or sequence of float
        Prior probability that a weight is included; "learned" finds one for each layer. A sequence has one number for
        every column of the encoded table, for the weights that leave it.
    weight_prior : float or "learned"
        Standard deviation of the prior of included weights; "learned" finds one for each layer.
    flow : FlowOptions, optional
        Kind and size of the flows.
    """

    posterior: str = _option("lrt", "choice", names=("lrt", "flow", "relaxed", "slab", "mnf"))
    structure: str = _option("average", "choice", names=("average", "median"), flag="predict-by")
    architecture: "str | Callable[[int, int], Module]" = _option("mlp", "choice", names=("mlp", "skip"))
    depth: int = _option(2, "whole", least=0)
    width: int = _option(64, "whole", least=1)
    activation: str = _option("relu", "choice", names=("relu", "leaky_relu", "elu", "gelu", "silu", "tanh"))
    prior_inclusion: "float | str | Sequence[float]" = _option(0.1, "real", "learned", list, tuple)
    weight_prior: "float | str" = _option(0.3, "real", "learned")
    flow: "FlowOptions | None" = _option(None, "object")
    temperature: float = _option(0.1, "real")
    validation_fraction: float = _option(0.0, "real")
    patience: "int | None" = _option(None, "whole", None, least=1)
    structure_rate: "float | str" = _option(3.0, "real", "auto")


@dataclass(kw_only=True, eq=False, repr=False)
class RegressorSettings(TrainingSettings):
    """The noise of a regression.

    Parameters
    ----------
    likelihood : {"gaussian", "student_t", "laplace"}
        Law of the noise. Student's t has 4 degrees of freedom.
    noise : {"learned", "input"} or float
        One scale per target, learned; a scale that depends on the input; or a fixed scale, in standard deviations of
        the target.
    """

    likelihood: str = _option("gaussian", "choice", names=("gaussian", "student_t", "laplace"))
    noise: "float | str" = _option("learned", "real", "learned", "input")


@dataclass(kw_only=True, eq=False, repr=False)
class DepthRegressorSettings(RegressorSettings, DepthSettings):
    """A regression by a network of unbounded depth."""


@dataclass(kw_only=True, eq=False, repr=False)
class FiniteRegressorSettings(RegressorSettings, FiniteSettings):
    """A regression by an ordinary network."""


@dataclass(kw_only=True, eq=False, repr=False)
class DepthUncertaintyRegressorSettings(RegressorSettings, DepthUncertaintySettings):
    """A regression by a network with a posterior over a given number of depths."""


@dataclass(kw_only=True, eq=False, repr=False)
class DropoutRegressorSettings(RegressorSettings, DropoutSettings):
    """A regression by a network with dropout."""


@dataclass(kw_only=True, eq=False, repr=False)
class MeanFieldRegressorSettings(RegressorSettings, MeanFieldSettings):
    """A regression by a network with an independent Gaussian on every weight."""


@dataclass(kw_only=True, eq=False, repr=False)
class SparseRegressorSettings(SparseSettings, RegressorSettings):  # in this order, for the defaults
    """A regression by a network whose weights may be absent."""


@dataclass(kw_only=True, eq=False, repr=False)
class EnsembleRegressorSettings(EnsembleSettings, RegressorSettings):  # in this order, for the defaults of restarts
    """A regression by several ordinary networks."""


# structure -> options of its classifier and of its regressor
STRUCTURES: dict[str, tuple[type[TrainingSettings], type[TrainingSettings]]] = {
    "depth": (DepthSettings, DepthRegressorSettings),
    "finite": (FiniteSettings, FiniteRegressorSettings),
    "dun": (DepthUncertaintySettings, DepthUncertaintyRegressorSettings),
    "dropout": (DropoutSettings, DropoutRegressorSettings),
    "sparse": (SparseSettings, SparseRegressorSettings),
    "meanfield": (MeanFieldSettings, MeanFieldRegressorSettings),
    "ensemble": (EnsembleSettings, EnsembleRegressorSettings),
}


def options_of(kind: type[TrainingSettings]) -> tuple[Field[Any], ...]:
    """Return the options of an estimator or of its settings, what is special to a family first."""
    return tuple(sorted(fields(kind), key=lambda f: f.name in TrainingSettings.__dataclass_fields__))


def described(kind: type) -> dict[str, tuple[str, str]]:
    """Return name -> (type, text) of every option, as the docstrings of its settings say.

    Examples
    --------
    >>> described(DepthSettings)["width"]
    ('int', 'Units per layer.')
    """
    found: dict[str, tuple[str, str]] = {}
    for base in kind.__mro__:
        if "__dataclass_params__" not in vars(base):
            continue
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("Parameters\n----------\n")
        for entry in re.split(r"\n(?=\S)", section.partition("\n\n")[0]):
            head, _, text = entry.partition("\n")
            name, colon, type_ = head.partition(" : ")
            if colon:
                found.setdefault(name, (type_, " ".join(text.split())))
    return found


def documented(kind: Kind) -> Kind:
    """Write the options into the docstring of an estimator, in place of its line ``{parameters}``."""
    entries = []
    for name, (type_, text) in described(kind).items():
        entries.append(f"    {name} : {type_}, default={getattr(kind, name)!r}\n        {text}")
    kind.__doc__ = (kind.__doc__ or "").replace("    {parameters}", "\n".join(entries))
    return kind
