"""The estimators of networks of unbounded depth, and what they share with other networks of layers and heads."""

import math
import warnings
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fathomless.estimators.hamiltonian import HamiltonianEstimator, Sampled, unconverged
from fathomless.estimators.incremental import Incremental
from fathomless.estimators.options import documented
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.variational import VariationalEstimator
from fathomless.families.depth import FAMILY
from fathomless.families.depth.convergence import depth_drift, reach
from fathomless.families.depth.fitting import fitting
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.depth.options import DepthOptions, NetworkOptions
from fathomless.families.depth.sampled import SampledDepth, States
from fathomless.inference.heads import HEADS
from fathomless.inference.looks import FIRST, Law
from fathomless.inference.run import Fitted
from fathomless.nn.architectures import MLP, Architecture, TabularTransformer
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.ensemble import members_of
from fathomless.posterior.laws import (
    DepthLaw,
    DepthPrior,
    FixedDepth,
    FreeCategorical,
    HardTruncation,
    PoissonPrior,
    QuantilePoisson,
    SmoothTruncation,
    StickBreaking,
    TruncatedPoisson,
    UniformPrior,
)
from fathomless.posterior.likelihoods import Gaussian, LearnedNoise, Likelihood, LocationScale, StudentT
from fathomless.posterior.model import Model
from fathomless.posterior.structure import ListedPosterior, with_errors
from fathomless.system import checks, memory
from fathomless.system.checks import real
from fathomless.system.errors import ConvergenceWarning, DataError
from fathomless.system.rng import fold_in, seeded_globals

__all__ = ["LayeredNetwork", "UnboundedDepthClassifier", "UnboundedDepthRegressor"]

_MOST = 1000  # layers of a network at its start
_LAWS: dict[str, Callable[[float], DepthLaw]] = {
    "auto": lambda rate: TruncatedPoisson(rate),
    "poisson": lambda rate: TruncatedPoisson(rate),
    "two_sided": lambda rate: TruncatedPoisson(rate, HardTruncation(0.05, 0.95)),
    "taper": lambda rate: TruncatedPoisson(rate, SmoothTruncation()),
    "quantile": lambda rate: QuantilePoisson(rate),
    "stick_breaking": lambda rate: StickBreaking(rate),
    "categorical": lambda rate: FreeCategorical(10),
}
_VALUES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        HardTruncation,
        TruncatedPoisson,
        FixedDepth,
        FreeCategorical,
        PoissonPrior,
        QuantilePoisson,
        StickBreaking,
        SmoothTruncation,
        UniformPrior,
        WeightPrior,
    )
}


class LayeredNetwork(NetworkOptions, VariationalEstimator, ABC):
    """What families of layers and heads share.

    Attributes
    ----------
    depth_posterior_ : dict of int to float
        Posterior weight of each depth.
    depth_posterior_error_ : dict of int to float
        Standard error of each of these weights, if held-out rows decided; else empty.
    depth_posterior_single_ : dict of int to float
        Which single depth predicts the held-out rows best (pseudo-BMA+), where `depth_posterior_` is the mixture that
        does; empty if the evidence bound decided.
    kinds_ : list of dict
        Of several kinds of network (`vary`): the "options" of each, its "weight" and how many "networks" it has; else
        empty.
    """

    structure_: ListedPosterior
    depth_posterior_: dict[int, float]
    depth_posterior_error_: dict[int, float]
    depth_posterior_single_: dict[int, float]
    kinds_: list[dict[str, Any]]
    sampling_: dict[int, dict[str, Any]]
    saved_values = _VALUES
    shown = FAMILY.progress

    def _blocks(self, inputs: int, outputs: int, width: int | None = None) -> Architecture:
        width = self._hidden() if width is None else width
        match self.architecture:
            case "mlp" | "residual":
                return MLP(inputs, outputs, width, self._between(), residual=self.architecture == "residual")
            case "transformer":
                return TabularTransformer(inputs, outputs, width)
        if callable(self.architecture):
            return self.architecture(inputs, outputs)
        raise DataError(
            f"architecture={self.architecture!r} was given; allowed are 'mlp', 'residual', 'transformer', or a "
            "callable (inputs, outputs) -> Architecture"
        )

    def _between(self) -> str:
        """Return the activation."""
        return self.activation if self.activation != "auto" else "tanh" if self._sampled() else "relu"

    def _hidden(self) -> int:
        """Return the units of a layer."""
        return int(self.width) if self.width != "auto" else 32 if self._sampled() else 64

    def _sampled(self) -> bool:
        return getattr(self, "weights", "map") == "hmc"

    def _options_of_model(self, prior: float | WeightPrior, seed: int, dtype: torch.dtype) -> dict[str, Any]:
        prior = prior if isinstance(prior, WeightPrior) else WeightPrior(real("weight_prior", prior))
        return {"weight_prior": prior, "seed": fold_in(seed, "weights"), "dtype": dtype}

    def _room(
        self, inputs: int, outputs: int, dtype: torch.dtype, *, layers: int, heads: int, copies: float = 1.0
    ) -> None:
        """Refuse a network that will not fit: its weights (`copies` numbers for each), gradients and two moments."""
        if layers > _MOST:
            raise DataError(f"a network of {layers:,} layers was asked for; up to {_MOST:,} are allowed")
        if callable(self.architecture):
            return

        def count(width: int) -> int:
            blocks = self._blocks(inputs, outputs, width)
            parts = [(blocks.layer(1), min(layers, 1)), (blocks.layer(2), max(layers - 1, 0)), (blocks.head(2), heads)]
            return sum(n * sum(p.numel() for p in part.parameters()) for part, n in parts)

        # the count is a quadratic polynomial, and torch is slow to start to count without building
        units, small = self._hidden(), (4, 8, 12)
        with seeded_globals(0):
            polynomial = np.polyfit(small, [count(width) for width in small], 2)

        def need(width: int) -> float:
            return float(4.0 * copies * self.n_restarts * dtype.itemsize * np.polyval(polynomial, width))

        def fitting(share: float) -> str:
            width, most = 4 * int(math.sqrt(share) * units / 4), share * need(units)
            while width > 4 and need(width) > most:  # the need has a linear part too
                width = 4 * int(0.98 * width / 4)  # a multiple of the four heads of a transformer
            return f"a width of about {max(width, 4):,} fits"

        memory.require(need(units), f"a network of {layers} layers of width {units:,}", fitting)

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        for i, own in enumerate(blueprint.get("members", ())):
            prefix = f"model/members.{i}."
            of_member = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
            self._check_saved(own, {f"model/{name}": shape for name, shape in of_member.items()})
        if {"members", "states", "networks"} & set(blueprint):  # what was sampled checks its sizes itself
            return
        layers = {name.split(".")[1] for name in shapes if name.startswith("model/layers.")}
        heads = {name.split(".")[1] for name in shapes if name.startswith("model/heads.")}
        sizes = {size for shape in shapes.values() for size in shape}
        shared = not heads and any(name.startswith("model/readout.") for name in shapes)
        named = set() if shared else set(map(str, blueprint["heads"]))
        if (
            layers != {str(k) for k in range(1, blueprint["layers"] + 1)}
            or heads != named
            or len(blueprint["heads"]) > len(layers) + 1
        ):
            raise DataError(f"its layout names {blueprint['layers']} layers, and it holds {len(layers)}")
        if layers and not callable(self.architecture) and self._hidden() not in sizes:
            raise DataError(f"its width is {self._hidden()}, and no weights have this size")

    def _describe(self) -> None:
        self.kinds_ = self.weighing_.get("kinds", [])
        self.sampling_ = {int(number): told for number, told in self.weighing_.get("sampling", {}).items()}
        one_law = "numbers" in self.weighing_ and not self.kinds_
        first = members_of(self.model_)[0] if one_law else self.model_
        self.structure_ = cast(ListedPosterior, first.structure())
        if "numbers" in self.weighing_:
            self.structure_ = with_errors(self.structure_, self.weighing_)
        pairs = zip(self.structure_.names, self.structure_.probabilities, strict=True)
        self.depth_posterior_ = {int(name): p for name, p in pairs}
        numbers = self.weighing_.get("numbers", ())
        self.depth_posterior_error_ = dict(zip(numbers, self.weighing_.get("errors", ()), strict=True))
        self.depth_posterior_single_ = dict(zip(numbers, self.weighing_.get("single", ()), strict=True))
        if isinstance(self.model_, SampledDepth) and self.model_.reach.shape[1]:
            self.relevance_ = _relevance(self.model_, self.schema_.encoded_names, 0.9)

    def _warn(self, fitted: Fitted) -> None:
        for text in unconverged(fitted.weighing):
            warnings.warn(text, ConvergenceWarning, stacklevel=4)
        t = fitted.training
        model = next((part for part in fitted.model.modules() if isinstance(part, UnboundedDepth)), None)
        if t is None or model is None or fitted.found is not None or "mean_depth" not in fitted.history[-1]:
            return
        mean = fitted.history[-1]["mean_depth"]
        remedy = f"Raise epochs (now {t.epochs}) or structure_rate (now {t.structure_rate:.2g})"
        drift = depth_drift(fitted.history)
        if drift and not fitted.stopped:
            warnings.warn(
                f"the posterior over depth has not come to rest: its mean is {mean:.1f} and at the pace of the last "
                f"half of the training it would go by {drift:+.1f} layers in another one. {remedy}",
                ConvergenceWarning,
                stacklevel=4,
            )
        rates = {"learning_rate": t.learning_rate, "structure_rate": t.structure_rate}
        how_far = reach(model.law, model.prior, fitted.history, **rates) if t.structure_optimizer == "adam" else None
        if how_far is not None and how_far.short(fitted.stopped):
            mean = fitted.model.structure().statistics["mean_depth"]  # of the epoch that was kept
            warnings.warn(
                f"the posterior over depth could not have gone far from its start: its parameter could move by "
                f"{how_far.travel:.2g}, and {how_far.distance:.2g} lead to the mean of the prior, so that the mean "
                f"depth of {mean:.1f} says where it began. {remedy}, or start nearer to the prior (initial_depth)",
                ConvergenceWarning,
                stacklevel=4,
            )


class _UnboundedDepth(DepthOptions, Incremental, HamiltonianEstimator, LayeredNetwork, ABC):
    """How the options of the family become a model.

    Attributes
    ----------
    sampling_ : dict of int to dict
        Of sampled weights, for each depth: a record of every chain, and what the chains say of their convergence:
        "rhat" (the 95th percentile of R-hat over what networks predict at 100 rows and 100 random points,
        "rhat_median" beside), "ess" and "mcse" (medians; in standard deviations), "doubtful" (share of rows whose
        leave-one-out densities are not reliable), "followed" (scales, noise, log-likelihood), "seconds". Else empty.
    """

    def relevance(self, level: float = 0.9) -> dict[str, dict[str, float]]:
        """Return the root mean square of the weights that leave each encoded column, where weights were sampled.

        Parameters
        ----------
        level : float
            Of the credible intervals.

        Returns
        -------
        dict of str to dict
            "median", "low" and "high" of the root mean square of these weights, for standardised columns. Under the
            prior of networks with hidden layers, times the fourth root of the number of columns, the median is 0.85,
            and 90 % lie between 0.41 and 3.1: a column is found out if it is far below.

        Raises
        ------
        DataError
            If weights were not sampled, or the architecture has no first linear map.
        """
        check_is_fitted(self, "model_")
        if not 0.0 < level < 1.0:
            raise DataError(f"level={level} was given; a number between 0 and 1 is allowed")
        model = self.model_
        if not isinstance(model, SampledDepth) or not model.reach.shape[1]:
            raise DataError(
                f"relevance was asked of networks with weights={self.weights!r} and architecture={self.architecture!r}"
                "; columns have scales where weights='hmc' and a network begins with a linear map"
            )
        return _relevance(model, self.schema_.encoded_names, level)

    def _samples(self) -> bool:
        return self._sampled()

    def _start_options(self) -> dict[str, Any]:
        return {"weights": "map", "activation": self._between(), "width": self._hidden()}

    def _sampled_model(self, prepared: Prepared, masses: Mapping[int, float], found: Mapping[int, Sampled]) -> Model:
        outputs = self._likelihood(prepared.target).outputs
        model = self._build_model(prepared.inputs, outputs, prepared.seed, prepared.dtype)
        assert isinstance(model, SampledDepth)
        model.fill(masses, {number: _states(one) for number, one in found.items()})
        return model.to(prepared.device)

    def _network_of(self, inputs: int, depth: int, outputs: int) -> nn.Module:
        blocks = self._blocks(inputs, outputs)
        return nn.Sequential(*map(blocks.layer, range(1, depth + 1)), blocks.head(depth))

    def _sampled_likelihood(self, likelihood: Likelihood) -> Likelihood:
        learned = isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, LearnedNoise)
        if not learned:
            return likelihood
        targets = cast(LocationScale, likelihood).targets
        heavy = isinstance(likelihood, StudentT)
        return StudentT(targets, df="stated", noise="stated") if heavy else Gaussian(targets, noise="stated")

    def _law_is_free(self) -> bool:
        fixed = isinstance(self.depth_law, FixedDepth | int) and not isinstance(self.depth_law, bool)
        return not fixed

    def _looking(self) -> dict[str, Any]:
        return {}

    def _folds_by_default(self) -> bool:
        return self.weights in ("map", "hmc")

    def _heads(self) -> str:
        checks.choice("head", self.head, ("auto", "point", *HEADS))
        return "point" if self.head == "auto" else self.head

    def _multiplications(self, inputs: int) -> float:
        return float(inputs * self._hidden() + FIRST * self._hidden() ** 2)

    def _named_law(self) -> Law | None:
        if isinstance(self.depth_law, str):
            law = None if self.depth_law in ("auto", "categorical", "stick_breaking") else self._law()
        else:
            law = (
                None if isinstance(self.depth_law, FreeCategorical | StickBreaking) else cast(DepthLaw, self.depth_law)
            )
        return None if law is None else fitting(law)

    def _without_effect(self) -> tuple[str, ...]:
        return ("initial_depth", "structure_rate", "structure_optimizer", "structure_delay", "schedule")

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth | SampledDepth:
        blocks, depths, law = self._blocks(inputs, outputs), self.depth_prior, self._law()
        deepest = self._deepest(law)
        self._room(inputs, outputs, dtype, layers=deepest, heads=deepest + 1)
        if self._samples():
            return SampledDepth(partial(self._network_of, inputs), outputs)
        with warnings.catch_warnings():
            if self.structure_from != "elbo" and self._folds_by_default():  # where the law starts will not matter
                warnings.simplefilter("ignore", ConvergenceWarning)
            return UnboundedDepth(
                blocks.layer,
                blocks.head,
                law=law,
                prior=depths if isinstance(depths, DepthPrior) else PoissonPrior(real("depth_prior", depths)),
                min_depth=self.min_depth,
                weights=self.weights,
                max_depth=self.max_depth,
                **self._options_of_model(self.weight_prior, seed, dtype),
            )

    def _deepest(self, law: DepthLaw) -> int:
        """Return the greatest depth at the start."""
        start = [raw for raw in (law.start(0),) if raw is not None]
        deepest = law.support(torch.tensor(start, dtype=torch.float64))[-1]
        depth = self.min_depth + (deepest if self.max_depth is None else min(deepest, self.max_depth))
        if depth > _MOST:
            raise DataError(
                f"depth_law={self.depth_law!r}, initial_depth={self.initial_depth} and min_depth={self.min_depth} ask "
                f"for {depth:,} layers; a start with up to {_MOST:,} is allowed, and it grows if the data ask for more"
            )
        return depth

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


def _relevance(model: SampledDepth, names: Sequence[str], level: float) -> dict[str, dict[str, float]]:
    """Return weighted quantiles, over all states, of the reach of each column."""
    tails = (0.5 - 0.5 * level, 0.5, 0.5 + 0.5 * level)
    order = model.reach.sort(0)
    shares = model.log_weight.exp()[order.indices].cumsum(0)  # (S, D)
    places = [(shares < tail * shares[-1]).sum(0).clamp(max=len(shares) - 1) for tail in tails]
    low, median, high = (order.values.gather(0, place[None])[0].tolist() for place in places)
    every = zip(names, median, low, high, strict=True)
    return {name: {"median": m, "low": a, "high": b} for name, m, a, b in every}


def _states(found: Sampled) -> States:
    """Put together what the chains of one depth have kept, chain after chain."""
    kept = [(chain.number, one) for chain in found.run.chains for one in chain.kept]
    weights, precision, df = (
        torch.from_numpy(np.array([one[name] for _, one in kept])) for name in ("weights", "precision", "df")
    )
    inputs = found.groups.inputs
    leaving = weights[:, : int((found.groups.of_weight < inputs).sum())]  # unit after unit, input by input
    reach = leaving.double().square().reshape(len(weights), -1, max(inputs, 1)).mean(1).sqrt()[:, :inputs]
    df = df if bool(df.isfinite().all()) else df[:, :0]
    return States(weights, precision.rsqrt(), df, reach, torch.tensor([number for number, _ in kept]))


@documented
class UnboundedDepthClassifier(_UnboundedDepth, Classifier):
    """Classifier whose network has as many layers as the data ask for.

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
    >>> clf = UnboundedDepthClassifier(epochs=60, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """


@documented
class UnboundedDepthRegressor(_UnboundedDepth, Regressor):
    """Regressor, for one target or several, whose network has as many layers as the data ask for.

    Targets are centred and scaled inside; predictions are in the units of y.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = UnboundedDepthRegressor(random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """
