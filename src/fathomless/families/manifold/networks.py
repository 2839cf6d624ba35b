"""Construction of weight manifolds from options, and their diagnostics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from fathomless.estimators.networks import Networks
from fathomless.families.manifold.autoencoder import LAST_MAPS, Decoder
from fathomless.families.manifold.latent import DecoderLaw, LatentLaw
from fathomless.families.manifold.model import ProjectedNetwork
from fathomless.families.manifold.network import Flat, FlatModule, FlatNetwork
from fathomless.families.manifold.options import ManifoldOptions
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.fit_diagnostics import Diagnostics
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["ManifoldDiagnostics", "ManifoldNetworks"]


@dataclass(frozen=True, kw_only=True)
class ManifoldDiagnostics(Diagnostics):
    """Diagnostics of a weight manifold.

    Attributes
    ----------
    kept : tuple of int
        Indices of the candidates that the decoder was fitted to.
    score : float or None
        Validation score of the first stage, in nats per row of standardised targets.
    gate : mapping of str to float
        Reconstruction quality of the decoder: the fields of
        :class:`~fathomless.families.manifold.autoencoder.Gate`.
    average : tuple of D float
        Mean of the encoded columns; empty in models of version 0.1.0.
    latent_dims : mapping of str to mapping
        Held-out scores of each number of latent dimensions, if several were tried.
    sampling : mapping
        Record of the chains of a sampled latent posterior.
    """

    kept: tuple[int, ...]
    score: float | None
    gate: Mapping[str, Any]
    average: tuple[float, ...] = ()
    latent_dims: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)


class ManifoldNetworks(ManifoldOptions, Networks):
    """Networks on a low-dimensional manifold of weights."""

    diagnostics_class: ClassVar[type[Diagnostics]] = ManifoldDiagnostics

    saved_values: ClassVar[dict[str, type]] = {"WeightPrior": WeightPrior}

    latent_dim_: int

    def _network(self, inputs: int, outputs: int) -> Flat:
        if callable(self.architecture):
            return FlatModule(checks.check_returned("architecture", self.architecture(inputs, outputs), nn.Module))
        checks.choice("architecture", self.architecture, ("mlp",))
        return FlatNetwork(inputs, outputs, _check_widths("width", self.width, least=1), self.activation)

    def _latent_dims(self) -> list[int]:
        """Return the candidate numbers of latent dimensions."""
        numbers = self.latent_dim if isinstance(self.latent_dim, list | tuple) else [self.latent_dim]
        if not numbers:
            raise DataError("latent_dim=() was given; an integer, or a sequence of integers, is allowed")
        return [checks.whole("latent_dim", number, least=1) for number in numbers]

    def _random_part(self) -> str:
        chosen = checks.choice("decoder_law", self.decoder_law, ("bias", "last", "none"))
        sampled = checks.choice("latent_posterior", self.latent_posterior, ("mixture", "sampled")) == "sampled"
        return "none" if sampled else chosen

    def _decoder_hidden(self) -> tuple[int, ...]:
        return () if self.decoder_width == 0 else _check_widths("decoder_width", self.decoder_width, least=0)

    def _decoder_map(self) -> str:
        chosen = checks.choice("decoder_map", self.decoder_map, LAST_MAPS)
        if chosen != "whole" and (self.decoder_width == 0 or self.decoder_law == "last"):
            raise DataError(
                f"decoder_map={chosen!r} was given with decoder_width={self.decoder_width!r} and "
                f"decoder_law={self.decoder_law!r}; it needs decoder_width > 0 and decoder_law='bias' or 'none'"
            )
        return chosen

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> ProjectedNetwork:
        network = self._network(inputs, likelihood.outputs)
        decoder = Decoder(
            self.latent_dim_, self._decoder_hidden(), network.size, self._decoder_map(), network.blocks
        ).to(dtype)
        law = LatentLaw(torch.zeros(1, self.latent_dim_, dtype=dtype, device="cpu"), covariance=self.covariance)
        decoder_law = None if self._random_part() == "none" else DecoderLaw(decoder, self._random_part())
        return ProjectedNetwork(network, decoder, law, decoder_law).eval()

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        if set(blueprint) - {"points"} != {"components", "random_columns"}:
            raise DataError(f"its layout is {sorted(blueprint)}, not that of a weight manifold")
        dimensions = shapes["model/law.means"][1]
        if dimensions not in self._latent_dims():
            raise DataError(f"its latent space has {dimensions} dimensions, and latent_dim={self.latent_dim}")
        self.latent_dim_ = dimensions


def _check_widths(name: str, value: Any, least: int) -> tuple[int, ...]:
    """Check an option of widths, and return the units of each hidden layer."""
    widths = value if isinstance(value, list | tuple) else (value,)
    return tuple(checks.whole(name, width, least=max(1, least)) for width in widths)
