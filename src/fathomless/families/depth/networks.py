"""Networks of unbounded depth, built from options, and the base class of all networks of layers and heads."""

import math
import warnings
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from fathomless.estimators.networks import Networks
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.depth.options import DepthOptions, NetworkOptions
from fathomless.families.depth.sampled import SampledDepth
from fathomless.nn.architectures import MLP, Architecture, TabularTransformer
from fathomless.nn.layers import WeightPrior
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
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system import checks, memory
from fathomless.system.checks import positive, real
from fathomless.system.errors import ConvergenceWarning, DataError
from fathomless.system.rng import building, fold_in

__all__ = ["DepthNetworks", "LayeredNetworks", "compute_relevance"]

_MOST = 1000  # largest initial number of layers
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


class LayeredNetworks(NetworkOptions, Networks, ABC):
    """Base class of networks of layers and heads."""

    saved_values: ClassVar[dict[str, type]] = _VALUES

    def _make_architecture(self, inputs: int, outputs: int, width: int | None = None) -> Architecture:
        width = self._choose_width() if width is None else width
        match self.architecture:
            case "mlp" | "residual":
                return MLP(inputs, outputs, width, self._choose_activation(), residual=self.architecture == "residual")
            case "transformer":
                return TabularTransformer(inputs, outputs, width)
        if callable(self.architecture):
            built = self.architecture(inputs, outputs)
            layer, head = (getattr(built, name, None) for name in ("layer", "head"))
            # any object with both methods will do; others are refused with the message for a wrong type
            return (
                built
                if callable(layer) and callable(head)
                else checks.check_returned("architecture", built, Architecture)
            )
        raise DataError(
            f"architecture={self.architecture!r} was given; allowed are 'mlp', 'residual', 'transformer', or a "
            "callable (inputs, outputs) -> Architecture"
        )

    def _choose_activation(self) -> str:
        """Return the activation; "auto" depends on the inference of the weights."""
        if self.activation != "auto":
            return self.activation
        return "tanh" if self._uses_hmc() else "relu"

    def _choose_width(self) -> int:
        """Return the number of units of a layer; "auto" depends on the inference of the weights."""
        if self.width != "auto":
            return int(self.width)
        return 32 if self._uses_hmc() else 64

    def _uses_hmc(self) -> bool:
        return bool(self._choice("weights") == "hmc")

    def _model_options(self, prior: float | str | WeightPrior, seed: int, dtype: torch.dtype) -> dict[str, Any]:
        if prior in ("auto", "columns"):
            prior = WeightPrior(columns=prior == "columns")
        prior = prior if isinstance(prior, WeightPrior) else WeightPrior(real("weight_prior", prior, "auto", "columns"))
        return {"weight_prior": prior, "seed": fold_in(seed, "weights"), "dtype": dtype}

    def _check_memory(
        self, inputs: int, outputs: int, dtype: torch.dtype, *, layers: int, heads: int, copies: float = 1.0
    ) -> None:
        """Raise an error if the weights (`copies` numbers each), gradients and two moments exceed the memory."""
        if layers > _MOST:
            raise DataError(f"a network of {layers:,} layers was requested; up to {_MOST:,} are allowed")
        if callable(self.architecture):
            return

        def count(width: int) -> int:
            blocks = self._make_architecture(inputs, outputs, width)
            parts = [(blocks.layer(1), min(layers, 1)), (blocks.layer(2), max(layers - 1, 0)), (blocks.head(2), heads)]
            return sum(n * sum(p.numel() for p in part.parameters()) for part, n in parts)

        # the count is a quadratic polynomial in the width, so that three small networks determine it
        units = self._choose_width()
        small = (4, 8, 12)
        with building(0):
            polynomial = np.polyfit(small, [count(width) for width in small], 2)

        starts = self._restarts().count

        def need(width: int) -> float:
            return float(4.0 * copies * starts * dtype.itemsize * np.polyval(polynomial, width))

        def fitting(share: float) -> str:
            width = 4 * int(math.sqrt(share) * units / 4)
            most = share * need(units)
            while width > 4 and need(width) > most:  # the square root ignores the linear part of the polynomial
                width = 4 * int(0.98 * width / 4)  # a multiple of the four heads of a transformer
            return f"a width of about {max(width, 4):,} fits"

        memory.require(need(units), f"a network of {layers} layers of width {units:,}", fitting)

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        for i, member in enumerate(blueprint.get("members", ())):
            prefix = f"model/members.{i}."
            of_member = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
            self._check_saved(member, {f"model/{name}": shape for name, shape in of_member.items()})
        if {"members", "states", "networks"} & set(blueprint):  # sampled networks check their sizes in rebuild
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
            raise DataError(f"its layout has {blueprint['layers']} layers, but its weights have {len(layers)}")
        candidates = getattr(self, "candidates", None) or {}  # some families have none
        widths = {*candidates["width"]} if "width" in candidates else {self._choose_width()}
        if layers and not callable(self.architecture) and not widths & sizes:
            raise DataError(f"its width is {' or '.join(map(str, sorted(widths)))}, and no weights have this size")


class DepthNetworks(DepthOptions, LayeredNetworks):
    """Networks of unbounded depth, with point estimates, variational posteriors or sampled weights."""

    def _make_network(self, inputs: int, depth: int, outputs: int) -> nn.Module:
        blocks = self._make_architecture(inputs, outputs)
        return nn.Sequential(*map(blocks.layer, range(1, depth + 1)), blocks.head(depth))

    def _build_model(
        self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype
    ) -> UnboundedDepth | SampledDepth:
        blocks = self._make_architecture(inputs, likelihood.outputs)
        depths = self.depth_prior
        law = self._law()
        deepest = self._deepest(law)
        self._check_memory(inputs, likelihood.outputs, dtype, layers=deepest, heads=deepest + 1)
        if self._uses_hmc():
            return SampledDepth(partial(self._make_network, inputs), likelihood.outputs)
        with warnings.catch_warnings():
            if self._choice("structure_from") != "elbo" and self._choice("weights") in (
                "map",
                "hmc",
            ):  # where the law starts will not matter
                warnings.simplefilter("ignore", ConvergenceWarning)
            return UnboundedDepth(
                blocks.layer,
                blocks.head,
                law=law,
                prior=depths if isinstance(depths, DepthPrior) else PoissonPrior(real("depth_prior", depths)),
                min_depth=self.min_depth,
                weights=self._choice("weights"),
                max_depth=self.max_depth,
                **self._model_options(self.weight_prior, seed, dtype),
            )

    def _deepest(self, law: DepthLaw) -> int:
        """Return the initial maximum depth."""
        start = [raw for raw in (law.start(0),) if raw is not None]
        deepest = law.support(torch.tensor(start, dtype=torch.float64, device="cpu"))[-1]
        depth = self.min_depth + (deepest if self.max_depth is None else min(deepest, self.max_depth))
        if depth > _MOST:
            raise DataError(
                f"depth_law={self.depth_law!r}, structure_from__initial_depth={self._elbo().initial_depth} and "
                f"min_depth={self.min_depth} give {depth:,} initial layers; up to {_MOST:,} are allowed, and more are "
                "created in training where the posterior needs them"
            )
        return depth

    def _law(self) -> DepthLaw:
        match self.depth_law:
            case DepthLaw():
                return self.depth_law
            case int() if self.depth_law >= self.min_depth:
                return FixedDepth((self.depth_law - self.min_depth,))
            case str() if self.depth_law in _LAWS:
                return _LAWS[self.depth_law](positive("structure_from__initial_depth", self._elbo().initial_depth))
        raise DataError(
            f"depth_law={self.depth_law!r} was given; allowed are {', '.join(map(repr, _LAWS))}, a DepthLaw, or a "
            f"fixed depth of at least min_depth={self.min_depth}"
        )


def compute_relevance(model: SampledDepth, names: Sequence[str], level: float) -> dict[str, dict[str, float]]:
    """Return weighted posterior quantiles of the root mean square of the first-layer weights of each column."""
    tails = (0.5 - 0.5 * level, 0.5, 0.5 + 0.5 * level)
    order = model.reach.sort(0)
    shares = model.log_weight.exp()[order.indices].cumsum(0)  # (S, D)
    places = [(shares < tail * shares[-1]).sum(0).clamp(max=len(shares) - 1) for tail in tails]
    low, median, high = (order.values.gather(0, place[None])[0].tolist() for place in places)
    columns = zip(names, median, low, high, strict=True)
    return {name: {"median": m, "low": a, "high": b} for name, m, a, b in columns}
