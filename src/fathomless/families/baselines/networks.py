"""Networks of the baselines, built from options."""

import torch

from fathomless.families.baselines.drawn import DrawnNetworks
from fathomless.families.baselines.model import (
    depth_uncertainty_network,
    dropout_network,
    finite_network,
    matrix_normal_network,
    mean_field_network,
)
from fathomless.families.baselines.options import (
    DepthUncertaintyOptions,
    DropoutOptions,
    EnsembleOptions,
    FiniteOptions,
    LaplaceOptions,
    MatrixNormalOptions,
    MeanFieldOptions,
    SubspaceOptions,
    SWAGOptions,
    TrajectoryOptions,
)
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.depth.networks import LayeredNetworks
from fathomless.posterior.likelihoods import Likelihood

__all__ = [
    "DepthUncertaintyNetworks",
    "DropoutNetworks",
    "EnsembleNetworks",
    "FiniteNetworks",
    "LaplaceNetworks",
    "MatrixNormalNetworks",
    "MeanFieldNetworks",
    "SWAGNetworks",
    "SubspaceNetworks",
    "TrajectoryNetworks",
]


class FiniteNetworks(FiniteOptions, LayeredNetworks):
    """Networks of the baseline."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return finite_network(self._blocks(inputs, likelihood.outputs), self.depth, **start)


class DepthUncertaintyNetworks(DepthUncertaintyOptions, LayeredNetworks):
    """Networks of the baseline."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, likelihood.outputs, dtype, layers=self.depths, heads=1 if self.shared_head else self.depths)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        blocks, shared = self._blocks(inputs, likelihood.outputs), bool(self.shared_head)
        return depth_uncertainty_network(blocks, self.depths, shared_head=shared, **start)


class DropoutNetworks(DropoutOptions, LayeredNetworks):
    """Networks of the baseline."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return dropout_network(self._blocks(inputs, likelihood.outputs), self.depth, self.dropout, **start)


class MeanFieldNetworks(MeanFieldOptions, LayeredNetworks):
    """Networks of the baseline."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1, copies=2.0)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return mean_field_network(self._blocks(inputs, likelihood.outputs), self.depth, **start)


class MatrixNormalNetworks(MatrixNormalOptions, LayeredNetworks):
    """Networks of the baseline."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return matrix_normal_network(self._blocks(inputs, likelihood.outputs), self.depth, **start)


class LaplaceNetworks(LaplaceOptions, LayeredNetworks):
    """Networks of the baseline."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> DrawnNetworks:
        self._room(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return DrawnNetworks(self._blocks(inputs, likelihood.outputs), self.depth, **start)


class TrajectoryNetworks(TrajectoryOptions, LayeredNetworks):
    """Networks along a descent."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> DrawnNetworks:
        self._room(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return DrawnNetworks(self._blocks(inputs, likelihood.outputs), self.depth, linear=False, **start)


class SWAGNetworks(SWAGOptions, TrajectoryNetworks):
    """Networks with the moments of a descent."""


class SubspaceNetworks(SubspaceOptions, TrajectoryNetworks):
    """Networks of a plane."""


class EnsembleNetworks(EnsembleOptions, FiniteNetworks):
    """A finite network, several times."""
