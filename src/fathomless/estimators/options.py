"""The options of estimators, as plain values: one list for Python and for the command line.

Options come in groups: of tables, of variational training, of a law over structure that is moved by gradients, of
chains. A family takes the groups that it uses, and adds its own; its estimators are dataclasses of them. Nothing here
needs torch, so that ``fathomless --help`` answers at once.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from fathomless.estimators.declaring import documentation, option
from fathomless.estimators.renamed import accepted, has_old_names
from fathomless.estimators.values import ELBO, Adam, CheckpointOptions, FoldArray, Folds, Restarts, Splitter

if TYPE_CHECKING:
    from fathomless.inference.runs.run import Run

__all__ = [
    "COMMON",
    "GOING_ON",
    "OF_A_RUN",
    "ChainOptions",
    "ClassOptions",
    "CrossFitOptions",
    "DrawnTrainingOptions",
    "DrawnWeightsOptions",
    "LawOptions",
    "NaturalLawOptions",
    "NoiseOptions",
    "TableOptions",
    "VariationalOptions",
    "documented",
    "options_of",
]

Kind = TypeVar("Kind", bound=type)


@dataclass(kw_only=True, eq=False, repr=False)
class TableOptions:
    """How a table is read, and where and how a posterior is computed.

    Parameters
    ----------
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
    checkpoint : path or CheckpointOptions, optional
        Folder for checkpoints, or :class:`~fathomless.estimators.values.CheckpointOptions`. A fit that was interrupted
        goes on from there, to the same bytes.
    verbose : int
        0 says nothing; 1 shows a progress bar on standard error, and 2 writes a line there for every row of the
        history instead, for files and notebooks.
    random_state : int, RandomState, Generator or None
        Seed. The same seed, data, machine and number of threads give the same bytes.
    """

    missing: str = option("auto", "choice", names=("auto", "error", "impute"))
    unseen: str = option("error", "choice", names=("error", "ignore"))
    max_levels: int = option(100, "whole", least=2)
    device: str = option("auto", "text")
    precision: str = option("auto", "choice", names=("auto", "float32", "float64", "bfloat16"))
    checkpoint: "str | PathLike[str] | CheckpointOptions | None" = option(
        None, "object", None, str, PathLike, values={"checkpoint": CheckpointOptions}
    )
    verbose: int = option(0, "object")
    random_state: Any = option(None, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class VariationalOptions:
    """How a network is trained by stochastic gradients, from one start or several.

    Parameters
    ----------
    temperature : float
        T multiplies the divergence of the weights; 1 is the model.
    epochs : int or "auto"
        Passes over the data. "auto" makes about 4,000 steps (2,000 of more than five networks side by side), within 20
        and 1,000 epochs; where the posterior over structure is fitted to held-out rows, growth and slow starts may
        double them.
    batch_size : int or "auto"
        Rows per step. "auto" is 256, and 512 from 10,000 rows on.
    learning_rate : float
        Rate of the weights.
    optimizer : {"adam"} or Adam
        Steps of the weights, whose options are those of :class:`~fathomless.estimators.values.Adam`: the schedule of
        the rate, the longest gradient and the rise of the temperature.
    patience : int, "auto" or None
        Stop after so many validation scores without a better one; None never stops early. "auto" is 30; where the
        posterior over structure is fitted to held-out rows, it is a tenth of the epochs, and nothing stops before the
        focus.
    validation_fraction : float or "auto"
        Share of the rows that is held out of one network to choose the best epoch; 0 trains on all. "auto" is 0.1 from
        60 rows on, else 0.
    n_restarts : int or Restarts
        Networks trained from different initial weights, side by side, of which the best one is kept; or their number
        and choice, as a :class:`~fathomless.estimators.values.Restarts`.
    calibrate : bool
        At the end, fit the scale of the noise (whatever the likelihood itself learns) to the held-out rows.
    callbacks : sequence of callables, optional
        Called with the :class:`~fathomless.inference.runs.run.Run` after every row of the history, that is, after the
        first epoch in every eight steps or so.
    warm_start : bool
        Go on from the fitted state at the next call of fit.
    """

    temperature: float = option(1.0, "real")
    epochs: "int | str" = option("auto", "whole", "auto", least=1)
    batch_size: "int | str" = option("auto", "whole", "auto", least=1)
    learning_rate: float = option(5e-3, "real")
    optimizer: "str | Adam" = option("adam", "choice", names=("adam",), values={"adam": Adam})
    patience: "int | str | None" = option("auto", "whole", "auto", None, least=1)
    validation_fraction: "float | str" = option("auto", "real", "auto")
    n_restarts: "int | Restarts" = option(1, "whole", least=1, most=10_000, values={"restarts": Restarts})
    calibrate: bool = option(True, "flag")
    callbacks: "Sequence[Callable[[Run], None]] | None" = option(None, "object")
    warm_start: bool = option(False, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class LawOptions:
    """How the law over structure moves in a variational training.

    Parameters
    ----------
    structure_rate : float or "auto"
        Rate of the law over structure relative to `learning_rate`. "auto" lets the law go equally far however many
        steps there are.
    structure_delay : float
        Share of the epochs during which the law over structure stays where it starts.
    """

    structure_rate: "float | str" = option("auto", "real", "auto")
    structure_delay: float = option(0.0, "real", least=0)


@dataclass(kw_only=True, eq=False, repr=False)
class NaturalLawOptions(LawOptions):
    """A law over structure of so few parameters that natural gradients can move it.

    Parameters
    ----------
    structure_optimizer : {"adam", "natural"}
        Kind of step of the law over structure. The natural gradient finds the structure fast, also where the layers
        have not learned yet what they could.
    structure_radius : float
        Longest natural step.
    """

    structure_optimizer: str = option("adam", "choice", names=("adam", "natural"))
    structure_radius: float = option(0.1, "real")


@dataclass(kw_only=True, eq=False, repr=False)
class CrossFitOptions:
    """Which rows decide about structure and noise, and how many networks there are.

    Parameters
    ----------
    structure_from : {"auto", "held_out", "elbo"} or ELBO
        The posterior over structure is fitted to rows that the networks were not fitted to ("held_out"), or moved by
        the gradient of the evidence bound ("elbo", as in the papers), whose options are those of
        :class:`~fathomless.estimators.values.ELBO`. "auto" is the former for point estimates of weights where rows are
        held out or folded.
    cv : int, "auto", Folds, splitter, list of splits or array of int, shape (N,) or (R, N)
        Cross-fitted networks, each fitted to all folds of the rows but one; 1 trains one network, and "auto" chooses
        by the number of rows. A :class:`~fathomless.estimators.values.Folds` also has the number of partitions and the
        order of the rows. An array has the fold of each row, in one partition or in R. A splitter of scikit-learn, such
        as ``GroupKFold(5)`` or ``RepeatedKFold()``, gets the encoded rows whose weight is not zero, and must test every
        row once in each repetition; one that shuffles needs a `random_state` of its own. So must a list of splits, each
        (rows to train on, rows to test on).
    candidates : dict of str to list, optional
        Kinds of network: each combination of the values given for "architecture", "activation" and "weight_prior" is
        cross-fitted by itself, on the same folds, and all are weighed by rows that their networks have not seen (below
        200 rows they weigh the same). As many times the cost.
    """

    structure_from: "str | ELBO" = option("auto", "choice", names=("auto", "held_out", "elbo"), values={"elbo": ELBO})
    cv: "int | str | Folds | Any" = option(
        "auto", "whole", "auto", list, tuple, FoldArray, Splitter, least=1, most=10_000, values={"folds": Folds}
    )
    candidates: "Mapping[str, Sequence[Any]] | None" = option(None, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class ChainOptions:
    """How a posterior is sampled by Markov chains.

    Parameters
    ----------
    chains : int
        Chains, each from a start of its own.
    sweeps : int
        Sweeps of each chain, those of the burn-in among them.
    burn_in : float
        Share of the sweeps before the first state that is kept, 0 <= burn_in < 1.
    states : int or "auto"
        States that are kept of each chain, evenly spaced. "auto" is 250, or all after the burn-in if these are fewer.
    chains_by : {"selected", "all", "stacked"}
        How chains are weighed. "selected" takes those whose log-likelihood of the training rows is within 0.08 nats per
        row of the best one (0.04 for each column of a density that has more than two), and weighs them alike; "all"
        weighs all alike; "stacked" maximises the log score of rows that were held out.
    validation_fraction : float
        Share of the rows that is held out, for "stacked" and for a score of rows that no chain has seen.
    n_jobs : int
        Chains that run at once, on threads or whatever joblib's ``parallel_config`` says; -1 is one for each core. The
        bytes are the same.
    callbacks : sequence of callables, optional
        Called with the :class:`~fathomless.inference.mcmc.chains.Chains` forty times in a run.
    """

    chains: int = option(12, "whole", least=1, most=10_000)
    sweeps: int = option(4000, "whole", least=1)
    burn_in: float = option(0.5, "real", least=0)
    states: "int | str" = option("auto", "whole", "auto", least=1)
    chains_by: str = option("selected", "choice", names=("selected", "all", "stacked"))
    validation_fraction: float = option(0.0, "real", least=0)
    n_jobs: int = option(1, "whole", -1, least=1)
    callbacks: "Sequence[Callable[[Any], None]] | None" = option(None, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class ClassOptions:
    """How often classes count, and what they cost.

    Parameters
    ----------
    class_weight : {"balanced"}, dict or None
        How often a row of each class counts, as scikit-learn has it: this multiplies `sample_weight` before the fit.
        Everything is then about the population with these weights: probabilities, scores of held-out rows and the
        posterior over structure. "balanced" lets all classes count alike, and the rows as many as before.
    class_cost : {"balanced"}, dict or None
        What a mistake about a class costs: `predict` takes the class with the largest cost times probability.
        Probabilities stay as they are. "balanced" is the inverse of the frequency of a class.
    """

    class_weight: Any = option(None, "choice", None, dict, names=("balanced",))
    class_cost: Any = option(None, "choice", None, dict, names=("balanced",))


@dataclass(kw_only=True, eq=False, repr=False)
class DrawnWeightsOptions:
    """Weights that are drawn in predictions.

    Parameters
    ----------
    weight_draws : int
        Draws in predictions, where weights are drawn; where structures are drawn too, two weights for each.
    """

    weight_draws: int = option(16, "whole", least=1, most=10_000)


@dataclass(kw_only=True, eq=False, repr=False)
class DrawnTrainingOptions:
    """Weights that are drawn once for all rows, in training too.

    Parameters
    ----------
    training_draws : int
        Draws in each step of a training.
    """

    training_draws: int = option(1, "whole", least=1, most=10_000)


@dataclass(kw_only=True, eq=False, repr=False)
class NoiseOptions:
    """The noise of a regression.

    Parameters
    ----------
    likelihood : {"auto", "gaussian", "student_t", "laplace"}
        Law of the noise. "auto" trains with Gaussian noise and, where rows are held out or folded, takes Student's t if
        it predicts them better by two standard errors, in which a row counts for 3 nats at most. "student_t" has 4
        degrees of freedom.
    noise : {"learned", "input"} or float
        One scale per target, learned; a scale that depends on the input; or a fixed scale, in standard deviations of
        the target.
    """

    likelihood: str = option("auto", "choice", names=("auto", "gaussian", "student_t", "laplace"))
    noise: "float | str" = option("learned", "real", "learned", "input")


#: Options of one run, which neither predictions nor checkpoints depend on.
OF_A_RUN = ("verbose", "n_jobs")

#: Names of the options that are common to families: of tables, training, laws, draws and chains.
COMMON = frozenset(
    f.name
    for group in (
        TableOptions,
        VariationalOptions,
        NaturalLawOptions,
        DrawnWeightsOptions,
        DrawnTrainingOptions,
        CrossFitOptions,
        ChainOptions,
    )
    for f in fields(group)
)

#: Names of the options that a fit which goes on from an earlier one may change.
GOING_ON = COMMON | {f.name for f in fields(ClassOptions)}


def options_of(kind: type) -> tuple[Field[Any], ...]:
    """Return the options of an estimator or of a group, what is special to a family first."""
    return tuple(sorted(fields(kind), key=lambda f: f.name in COMMON))


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
def documented(kind: Kind) -> Kind:
    """Give an estimator a constructor with all its options, and a docstring with all its options and attributes.

    Its own docstring holds a summary, and notes, references and examples; what the docstrings of its bases say of
    options and attributes comes between.
    """
    dataclass(kw_only=True, eq=False, repr=False)(kind)
    if has_old_names(kind):
        _accept_old_names(kind)
    kind.__doc__ = documentation(kind)
    return kind


def _accept_old_names(kind: Any) -> None:
    """Let the constructor of an estimator take options by the names of the version before; its signature stays."""
    made = kind.__init__

    @functools.wraps(made)
    def __init__(self: Any, *given: Any, **options: Any) -> None:
        made(self, *given, **accepted(kind, options))

    __init__.__signature__ = inspect.signature(made)  # type: ignore[attr-defined]
    kind.__init__ = __init__
