"""The baselines as they are read from a folder."""

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
from fathomless.families.depth.fitted import FittedLayers
from fathomless.families.depth.model import UnboundedDepth

__all__ = [
    "FittedDepthUncertainty",
    "FittedDropout",
    "FittedEnsemble",
    "FittedFinite",
    "FittedLaplace",
    "FittedMatrixNormal",
    "FittedMeanField",
    "FittedSWAG",
    "FittedSubspace",
    "FittedTrajectory",
]


class FittedFinite(FiniteOptions, FittedLayers):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return finite_network(self._blocks(inputs, outputs), self.depth, **start)


class FittedDepthUncertainty(DepthUncertaintyOptions, FittedLayers):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depths, heads=1 if self.shared_head else self.depths)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        blocks, shared = self._blocks(inputs, outputs), bool(self.shared_head)
        return depth_uncertainty_network(blocks, self.depths, shared_head=shared, **start)


class FittedDropout(DropoutOptions, FittedLayers):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return dropout_network(self._blocks(inputs, outputs), self.depth, self.dropout, **start)


class FittedMeanField(MeanFieldOptions, FittedLayers):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1, copies=2.0)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return mean_field_network(self._blocks(inputs, outputs), self.depth, **start)


class FittedMatrixNormal(MatrixNormalOptions, FittedLayers):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return matrix_normal_network(self._blocks(inputs, outputs), self.depth, **start)


class FittedLaplace(LaplaceOptions, FittedLayers):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> DrawnNetworks:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return DrawnNetworks(self._blocks(inputs, outputs), self.depth, **start)


class FittedTrajectory(TrajectoryOptions, FittedLayers):
    """How the options of networks along a descent become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> DrawnNetworks:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return DrawnNetworks(self._blocks(inputs, outputs), self.depth, linear=False, **start)


class FittedSWAG(SWAGOptions, FittedTrajectory):
    """Networks with the moments of a descent."""


class FittedSubspace(SubspaceOptions, FittedTrajectory):
    """Networks of a plane."""


class FittedEnsemble(EnsembleOptions, FittedFinite):
    """A finite network, several times."""
