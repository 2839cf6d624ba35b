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
    """Networks of fixed depth with point estimates."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._check_memory(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._model_options(self.weight_prior, seed, dtype)
        return finite_network(self._make_architecture(inputs, likelihood.outputs), self.depth, **start)


class DepthUncertaintyNetworks(DepthUncertaintyOptions, LayeredNetworks):
    """Depth uncertainty networks."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._check_memory(
            inputs, likelihood.outputs, dtype, layers=self.depths, heads=1 if self.shared_head else self.depths
        )
        start = self._model_options(self.weight_prior, seed, dtype)
        blocks = self._make_architecture(inputs, likelihood.outputs)
        return depth_uncertainty_network(blocks, self.depths, shared_head=bool(self.shared_head), **start)


class DropoutNetworks(DropoutOptions, LayeredNetworks):
    """Networks with Monte Carlo dropout."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._check_memory(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._model_options(self.weight_prior, seed, dtype)
        return dropout_network(self._make_architecture(inputs, likelihood.outputs), self.depth, self.dropout, **start)


class MeanFieldNetworks(MeanFieldOptions, LayeredNetworks):
    """Networks with an independent Gaussian for each weight."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._check_memory(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1, copies=2.0)
        start = self._model_options(self.weight_prior, seed, dtype)
        return mean_field_network(self._make_architecture(inputs, likelihood.outputs), self.depth, **start)


class MatrixNormalNetworks(MatrixNormalOptions, LayeredNetworks):
    """Networks with a matrix normal posterior of each layer."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._check_memory(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._model_options(self.weight_prior, seed, dtype)
        return matrix_normal_network(self._make_architecture(inputs, likelihood.outputs), self.depth, **start)


class LaplaceNetworks(LaplaceOptions, LayeredNetworks):
    """Linearised networks with Laplace's approximation."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> DrawnNetworks:
        self._check_memory(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._model_options(self.weight_prior, seed, dtype)
        return DrawnNetworks(self._make_architecture(inputs, likelihood.outputs), self.depth, **start)


class TrajectoryNetworks(TrajectoryOptions, LayeredNetworks):
    """Base class of networks drawn from the iterates of gradient descent."""

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> DrawnNetworks:
        self._check_memory(inputs, likelihood.outputs, dtype, layers=self.depth, heads=1)
        start = self._model_options(self.weight_prior, seed, dtype)
        return DrawnNetworks(self._make_architecture(inputs, likelihood.outputs), self.depth, linear=False, **start)


class SWAGNetworks(SWAGOptions, TrajectoryNetworks):
    """Networks with SWAG draws of their weights."""


class SubspaceNetworks(SubspaceOptions, TrajectoryNetworks):
    """Networks with draws of their weights in a subspace."""


class EnsembleNetworks(EnsembleOptions, FiniteNetworks):
    """Deep ensembles of networks of fixed depth."""
