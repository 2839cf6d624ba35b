"""The estimators: one classifier and one regressor for each family.

Everything that families share is in :mod:`fathomless.scikit`.
"""

import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, cast

import torch

from fathomless.distributions import (
    Clip,
    ClippedPoisson,
    DepthLaw,
    DepthPrior,
    FixedDepth,
    FreeCategorical,
    PoissonPrior,
    QuantilePoisson,
    StickBreaking,
    Taper,
    UniformPrior,
)
from fathomless.errors import ConvergenceWarning, DataError
from fathomless.inference.svi import Run
from fathomless.layers import WeightPrior
from fathomless.likelihoods import Categorical, Gaussian, Laplace, Likelihood, StudentT
from fathomless.models.blocks import MLP, Architecture, TabularTransformer
from fathomless.models.depth import UnboundedDepth, unsettled
from fathomless.options import real
from fathomless.rng import derive
from fathomless.scikit import Classifier, Estimator, Regressor
from fathomless.targets import ClassLabels, TargetScale

__all__ = ["UnboundedDepthClassifier", "UnboundedDepthRegressor"]

Blocks = str | Callable[[int, int], Architecture]
Law = str | int | DepthLaw

_LAWS: dict[str, Callable[[float], DepthLaw]] = {
    "poisson": lambda rate: ClippedPoisson(rate),
    "two_sided": lambda rate: ClippedPoisson(rate, Clip(0.05, 0.95)),
    "taper": lambda rate: ClippedPoisson(rate, Taper()),
    "quantile": lambda rate: QuantilePoisson(rate),
    "stick_breaking": lambda rate: StickBreaking(rate),
    "categorical": lambda rate: FreeCategorical(10),
}
_VALUES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Clip,
        ClippedPoisson,
        FixedDepth,
        FreeCategorical,
        PoissonPrior,
        QuantilePoisson,
        StickBreaking,
        Taper,
        UniformPrior,
        WeightPrior,
    )
}


class _UnboundedDepth(Estimator):
    """What the family says: how its options become a model."""

    model_: UnboundedDepth
    saved_values = _VALUES

    architecture: Blocks
    width: int
    activation: str
    depth_law: Law
    initial_depth: float
    depth_prior: float | DepthPrior
    min_depth: int
    max_depth: int | None
    weights: str
    weight_prior: float | WeightPrior

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        blocks, depths, weights = self._blocks(inputs, outputs), self.depth_prior, self.weight_prior
        return UnboundedDepth(
            blocks.layer,
            blocks.head,
            law=self._law(),
            prior=depths if isinstance(depths, DepthPrior) else PoissonPrior(real("depth_prior", depths)),
            min_depth=self.min_depth,
            weights=self.weights,
            weight_prior=weights if isinstance(weights, WeightPrior) else WeightPrior(real("weight_prior", weights)),
            max_depth=self.max_depth,
            seed=derive(seed, "weights"),
            dtype=dtype,
        )

    def _blocks(self, inputs: int, outputs: int) -> Architecture:
        match self.architecture:
            case "mlp" | "residual":
                return MLP(inputs, outputs, self.width, self.activation, residual=self.architecture == "residual")
            case "transformer":
                return TabularTransformer(inputs, outputs, self.width)
        if callable(self.architecture):
            return self.architecture(inputs, outputs)
        raise DataError(
            f"architecture={self.architecture!r} was given; allowed are 'mlp', 'residual', 'transformer', or a "
            "callable (inputs, outputs) -> Architecture"
        )

    def _law(self) -> DepthLaw:
        match self.depth_law:
            case DepthLaw():
                return self.depth_law
            case int() if self.depth_law >= self.min_depth:
                return FixedDepth((self.depth_law - self.min_depth,))
            case str() if self.depth_law in _LAWS:
                return _LAWS[self.depth_law](real("initial_depth", self.initial_depth))
        raise DataError(
            f"depth_law={self.depth_law!r} was given; allowed are {', '.join(map(repr, _LAWS))}, a DepthLaw, or the "
            f"depth of an ordinary network, at least min_depth={self.min_depth}"
        )

    def _describe(self) -> None:
        self.structure_ = self.model_.structure()
        self.depth_posterior_ = self.model_.depth_posterior()

    def _warn(self, run: Run) -> None:
        way = unsettled(run.history)
        if way and not run.stop:
            warnings.warn(
                f"the posterior over depth has not come to rest: its mean is "
                f"{run.history[-1]['mean_depth']:.1f} and at the pace of the last half of the training it would go by "
                f"{way:+.1f} layers in another one. Raise epochs (now {run.training.epochs}) or structure_rate (now "
                f"{run.training.structure_rate:.2g})",
                ConvergenceWarning,
                stacklevel=3,
            )


class UnboundedDepthClassifier(_UnboundedDepth, Classifier):
    """Classifier whose network has as many layers as the data ask for.

    Parameters
    ----------
    architecture : {"mlp", "residual", "transformer"} or callable
        What a layer is; or a function (inputs, outputs) -> Architecture.
    width : int
        Units per layer.
    activation : str
        relu, leaky_relu, elu, gelu, silu or tanh.
    depth_law : str, int or DepthLaw
        Family of the posterior over depth: "poisson" (soft truncation), "two_sided", "taper", "quantile" (the
        paper's), "stick_breaking", "categorical" (ten depths); an integer is an ordinary network of that depth.
    initial_depth : float
        Where the posterior over depth starts: its mean offset above `min_depth` before clipping.
    depth_prior : float or DepthPrior
        Depth − min_depth ~ Poisson(depth_prior), or any prior.
    min_depth, max_depth : int
        Least depth (0: a linear model is one of the networks), and greatest, if there must be one.
    weights : {"map", "meanfield"}
        Point estimates with the prior's decay, or an independent Gaussian per weight.
    weight_prior : float or WeightPrior
        Standard deviation of the prior of every weight; or a prior that follows the shape of the layers.
    temperature : float
        T multiplies the divergence of the weights; 1 is the model.
    weight_draws : int
        Weight draws in predictions; used with "meanfield" alone.
    epochs, batch_size : int or "auto"
        Passes over the data, rows per step.
    learning_rate : float
        Rate of the weights.
    structure_rate : float or "auto"
        Rate of the depth law relative to it. "auto" lets the law go equally far however many steps there are.
    structure_optimizer : {"adam", "natural"}
        Kind of step of the depth law. The natural gradient finds the depth fast, also where the layers have not learned
        yet what they could.
    structure_radius : float
        Longest natural step.
    structure_delay : float
        Share of the epochs during which the depth law stays where it starts.
    schedule : str or tuple
        See :class:`~fathomless.inference.svi.Training`.
    patience : int, optional
        Stop after so many validation scores without a better one.
    clip_norm : float, optional
        Longest gradient.
    validation_fraction : float
        Share of the rows that is held out to choose the best epoch; 0 trains on all. Below 60 rows none are.
    calibrate : bool
        At the end, fit the scale of the noise (whatever the likelihood itself learns) to the held-out rows.
    missing, unseen, max_levels : str, str, int
        See :func:`~fathomless.data.fit_schema`.
    device : str
        "auto" takes a GPU if there is one.
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

    Attributes
    ----------
    classes_ : ndarray, shape (K,)
        Labels.
    structure_ : Structure
        Posterior over depth, with a summary.
    depth_posterior_ : dict of int to float
        p(depth | data).
    history_ : list of dict
        What happened in training: see :class:`~fathomless.inference.svi.Run`.
    n_iter_ : int
        Epochs done.
    validation_score_ : float or None
        Best mean log predictive density of the held-out rows in training, before calibration, in nats.
    model_, likelihood_ : nn.Module
        The fitted network and p(y | f).

    Notes
    -----
    With ``weights="map"`` the objective is penalised maximum likelihood with depth-weighted decay, not an evidence
    bound. The posterior over depth is an approximation by a parametric family; it need not find the best depth.

    References
    ----------
    A. Nazaret and D. Blei, "Variational Inference for Infinitely Deep Neural Networks", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = UnboundedDepthClassifier(random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """

    def __init__(
        self,
        *,
        architecture: Blocks = "mlp",
        width: int = 64,
        activation: str = "relu",
        depth_law: Law = "poisson",
        initial_depth: float = 2.0,
        depth_prior: float | DepthPrior = 0.5,
        min_depth: int = 0,
        max_depth: int | None = None,
        weights: str = "map",
        weight_prior: float | WeightPrior = 1.0,
        temperature: float = 1.0,
        weight_draws: int = 16,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 5e-3,
        structure_rate: float | Literal["auto"] = "auto",
        structure_optimizer: str = "adam",
        structure_radius: float = 0.1,
        structure_delay: float = 0.0,
        schedule: str | tuple[tuple[int, float], ...] = "cosine",
        patience: int | None = 30,
        clip_norm: float | None = None,
        validation_fraction: float = 0.1,
        calibrate: bool = True,
        missing: str = "auto",
        unseen: str = "error",
        max_levels: int = 100,
        device: str = "auto",
        precision: str = "auto",
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_seconds: float = 30.0,
        progress: bool = False,
        callbacks: Sequence[Callable[[Run], None]] | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def _likelihood(self, target: ClassLabels | TargetScale) -> Likelihood:
        return Categorical(len(cast(ClassLabels, target).labels))


class UnboundedDepthRegressor(_UnboundedDepth, Regressor):
    """Regressor, for one target or several, whose network has as many layers as the data ask for.

    Targets are centred and scaled inside; predictions are in the units of y.

    Parameters
    ----------
    likelihood : {"gaussian", "student_t", "laplace"}
        Law of the noise. Student's t has 4 degrees of freedom.
    noise : {"learned", "input"} or float
        One scale per target, learned; a scale that depends on the input; or a fixed scale, in standard deviations of
        the target.
    others
        As in :class:`UnboundedDepthClassifier`.

    Attributes
    ----------
    structure_, depth_posterior_, history_, n_iter_, validation_score_, model_, likelihood_
        As in :class:`UnboundedDepthClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = UnboundedDepthRegressor(random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """

    def __init__(
        self,
        *,
        likelihood: Literal["gaussian", "student_t", "laplace"] = "gaussian",
        noise: float | Literal["learned", "input"] = "learned",
        architecture: Blocks = "mlp",
        width: int = 64,
        activation: str = "relu",
        depth_law: Law = "poisson",
        initial_depth: float = 2.0,
        depth_prior: float | DepthPrior = 0.5,
        min_depth: int = 0,
        max_depth: int | None = None,
        weights: str = "map",
        weight_prior: float | WeightPrior = 1.0,
        temperature: float = 1.0,
        weight_draws: int = 16,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 5e-3,
        structure_rate: float | Literal["auto"] = "auto",
        structure_optimizer: str = "adam",
        structure_radius: float = 0.1,
        structure_delay: float = 0.0,
        schedule: str | tuple[tuple[int, float], ...] = "cosine",
        patience: int | None = 30,
        clip_norm: float | None = None,
        validation_fraction: float = 0.1,
        calibrate: bool = True,
        missing: str = "auto",
        unseen: str = "error",
        max_levels: int = 100,
        device: str = "auto",
        precision: str = "auto",
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_seconds: float = 30.0,
        progress: bool = False,
        callbacks: Sequence[Callable[[Run], None]] | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def _likelihood(self, target: ClassLabels | TargetScale) -> Likelihood:
        kinds: dict[str, Callable[..., Likelihood]] = {"gaussian": Gaussian, "student_t": StudentT, "laplace": Laplace}
        if self.likelihood not in kinds:
            raise DataError(f"likelihood={self.likelihood!r} was given; allowed are {', '.join(map(repr, kinds))}")
        return kinds[self.likelihood](len(cast(TargetScale, target).mean), noise=self.noise)
