"""Construction of sparse networks from options, and their diagnostics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn

from fathomless.estimators.networks import Networks
from fathomless.families.sparse.model import InputSkip, SparseNetwork
from fathomless.families.sparse.options import SparseOptions, candidate_temperatures
from fathomless.nn.architectures import make_activation
from fathomless.nn.bayesian import bayesian
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import SlabPrior
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, Diagnostics, Record
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system import checks, memory
from fathomless.system.checks import real
from fathomless.system.errors import DataError
from fathomless.system.rng import building, fold_in

__all__ = ["SparseDiagnostics", "SparseNetworks", "TemperatureChosen"]

_POSTERIORS = ("lrt", "flow", "relaxed", "slab", "mnf")


@dataclass(frozen=True, kw_only=True)
class TemperatureChosen(Record):
    """Temperature chosen on held-out rows.

    Attributes
    ----------
    temperature : float
        Temperature T.
    note : str
        Reason for the choice.
    candidates : tuple of mapping
        Scores of each candidate; see :class:`~fathomless.families.sparse.temperature.Candidate`.
    """

    temperature: float
    note: str
    candidates: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class SparseDiagnostics(CrossFitDiagnostics):
    """Diagnostics of sparse networks.

    Attributes
    ----------
    choice : TemperatureChosen, optional
        Choice of the temperature, unless it was given.
    """

    choice: TemperatureChosen | None = field(default=None, metadata={"flat": TemperatureChosen})


class SparseNetworks(SparseOptions, Networks):
    """Sparse networks, whose weights have inclusion variables."""

    diagnostics_class: ClassVar[type[Diagnostics]] = SparseDiagnostics

    saved_values: ClassVar[dict[str, type]] = {"FlowOptions": FlowOptions}

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> SparseNetwork:
        checks.choice("posterior", self.posterior, _POSTERIORS)
        self._check_memory(inputs, likelihood.outputs, dtype)
        first, rest = self._priors(inputs)
        options: dict[str, Any] = {
            "inclusion": self.posterior not in ("slab", "mnf"),
            "multiplier": (self.flow or FlowOptions()) if self.posterior in ("flow", "mnf") else None,
            "estimator": "relaxed" if self.posterior == "relaxed" else "local",
        }
        with building(fold_in(seed, "weights")):
            plain = self._network(inputs, likelihood.outputs)
            # only the first layer has inclusion priors that differ between inputs
            entry = next((n for n, part in plain.named_modules() if isinstance(part, nn.Linear)), None)
            network = bayesian(plain, lambda name, part: SpikeSlab(part, first if name == entry else rest, **options))
            return SparseNetwork(network.to(dtype=dtype), predict_by=self.predict_by)

    def _network(self, inputs: int, outputs: int) -> nn.Module:
        if callable(self.architecture):
            custom: nn.Module = checks.check_returned("architecture", self.architecture(inputs, outputs), nn.Module)
            return custom
        between = make_activation(self.activation)
        widths = [self.width] * self.depth
        match self.architecture:
            case "skip":
                network: nn.Module = InputSkip(inputs, widths, outputs, between)
            case "mlp":
                sizes = [inputs, *widths, outputs]
                linear = [nn.Linear(a, b) for a, b in pairwise(sizes)]
                parts = [part for layer in linear for part in (layer, make_activation(self.activation))]
                network = nn.Sequential(*parts[:-1])
            case _:
                raise DataError(
                    f"architecture={self.architecture!r} was given; allowed are 'mlp', 'skip', or a callable (inputs, "
                    "outputs) -> nn.Module"
                )
        for part in network.modules():
            if isinstance(part, nn.Linear):
                nn.init.kaiming_normal_(part.weight)
                nn.init.zeros_(part.bias)
        return network

    def _priors(self, inputs: int) -> tuple[SlabPrior, SlabPrior]:
        """Return the prior of the first layer, which may differ between inputs, and of the other layers."""
        given = self.prior_inclusion
        scale = self.weight_prior if isinstance(self.weight_prior, str) else real("weight_prior", self.weight_prior)
        if isinstance(given, list | tuple):
            if len(given) != inputs:
                raise DataError(
                    f"prior_inclusion has {len(given)} numbers and the encoded table {inputs} columns; give one number "
                    "per column"
                )
            inclusion = torch.tensor([real("prior_inclusion", p) for p in given], dtype=torch.float64, device="cpu")
            return SlabPrior(inclusion, scale), SlabPrior(float(inclusion.mean()), scale)
        prior = SlabPrior(given if isinstance(given, str) else real("prior_inclusion", given), scale)
        return prior, prior

    def _check_memory(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        """Check that the network fits into memory: three parameters per weight, their gradients and two moments."""
        if callable(self.architecture):
            return
        skip = inputs if self.architecture == "skip" else 0
        networks = max(self._restarts().count, len(candidate_temperatures(self.temperature)))  # trained in parallel

        def need(width: int) -> float:
            sizes = [inputs, *([width] * self.depth), outputs]
            weights = sum((a + (skip if i else 0)) * b for i, (a, b) in enumerate(pairwise(sizes)))
            return 12.0 * networks * dtype.itemsize * weights

        def fitting(share: float) -> str:
            width = self.width
            while width > 1 and need(width) > share * need(self.width):
                width = max(1, int(0.95 * width))
            return f"a width of about {width:,} fits"

        memory.require(need(self.width), f"a network of {self.depth} layers of width {self.width:,}", fitting)

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        if set(blueprint) - {"members", "sparse"}:  # "sparse" is a key of version 0.1.0
            raise DataError(f"its layout is {sorted(blueprint)}, not that of a sparse network")
        sizes = {size for shape in shapes.values() for size in shape}
        if self.depth and not callable(self.architecture) and self.width not in sizes:
            raise DataError(f"its width is {self.width}, and no weights have this size")
