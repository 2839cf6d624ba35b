"""Weight manifolds, built from options, and their diagnostics."""

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
        Numbers of the candidates that the decoder was fitted to.
    score : float or None
        Validation score of the first stage, in nats per row of standardised targets.
    gate : mapping of str to float
        Unexplained variance of the decoder, and whether its law was kept.
    average : tuple of D float
        Mean of the encoded columns; empty in models of version 0.1.0.
    latent_dims : mapping of str to mapping
        Trials of several numbers of latent dimensions.
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
    """Networks on a manifold of weights."""

    diagnostics_class: ClassVar[type[Diagnostics]] = ManifoldDiagnostics

    saved_values: ClassVar[dict[str, type]] = {"WeightPrior": WeightPrior}

    latent_dim_: int

    def _network(self, inputs: int, outputs: int) -> Flat:
        if callable(self.architecture):
            return FlatModule(checks.check_returned("architecture", self.architecture(inputs, outputs), nn.Module))
        checks.choice("architecture", self.architecture, ("mlp",))
        return FlatNetwork(inputs, outputs, _widths("width", self.width, least=1), self.activation)

    def _tried(self) -> list[int]:
        """Return the numbers of dimensions that are tried, or the only one."""
        given = self.latent_dim if isinstance(self.latent_dim, list | tuple) else [self.latent_dim]
        if not given:
            raise DataError("latent_dim=() was given; a whole number, or several, are allowed")
        return [checks.whole("latent_dim", one, least=1) for one in given]

    def _random(self) -> str:
        chosen = checks.choice("decoder_law", self.decoder_law, ("bias", "last", "none"))
        sampled = checks.choice("latent_posterior", self.latent_posterior, ("mixture", "sampled")) == "sampled"
        return "none" if sampled else chosen

    def _decoder_hidden(self) -> tuple[int, ...]:
        return () if self.decoder_width == 0 else _widths("decoder_width", self.decoder_width, least=0)

    def _decoder_map(self) -> str:
        chosen = checks.choice("decoder_map", self.decoder_map, LAST_MAPS)
        if chosen != "whole" and (self.decoder_width == 0 or self.decoder_law == "last"):
            raise DataError(
                f"decoder_map={chosen!r} was given with decoder_width={self.decoder_width!r} and "
                f"decoder_law={self.decoder_law!r}; hidden units and the law 'bias' or 'none' are needed"
            )
        return chosen

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> ProjectedNetwork:
        network = self._network(inputs, likelihood.outputs)
        hidden, last = self._decoder_hidden(), self._decoder_map()
        decoder = Decoder(self.latent_dim_, hidden, network.size, last, network.blocks).to(dtype)
        law = LatentLaw(torch.zeros(1, self.latent_dim_, dtype=dtype, device="cpu"), covariance=self.covariance)
        of_decoder = None if self._random() == "none" else DecoderLaw(decoder, self._random())
        return ProjectedNetwork(network, decoder, law, of_decoder).eval()

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        if set(blueprint) - {"points"} != {"components", "random_columns"}:
            raise DataError(f"its layout is {sorted(blueprint)}, not that of a weight manifold")
        dimensions = shapes["model/law.means"][1]
        if dimensions not in self._tried():
            raise DataError(f"its latent space has {dimensions} dimensions, and latent_dim={self.latent_dim}")
        self.latent_dim_ = dimensions


def _widths(name: str, given: Any, least: int) -> tuple[int, ...]:
    """Return units of hidden layers."""
    each = given if isinstance(given, list | tuple) else (given,)
    return tuple(checks.whole(name, one, least=max(1, least)) for one in each)
