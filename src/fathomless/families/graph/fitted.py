"""Infinite graphs, as they are read from a folder."""

from abc import ABC
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import torch

from fathomless.data.targets import ClassLabels, Target, TargetScale
from fathomless.estimators.fitted import FittedModel
from fathomless.families.graph.model import IndianChefs
from fathomless.families.graph.options import GraphOptions
from fathomless.posterior.likelihoods import Categorical, Gaussian, Likelihood
from fathomless.posterior.structure import GraphPosterior
from fathomless.system.errors import DataError

__all__ = ["FittedGraph"]


class FittedGraph(GraphOptions, FittedModel, ABC):
    """How the options of the family become a model, and what it shows."""

    on_processor = True  # chains run there

    model_: IndianChefs
    structure_: GraphPosterior
    hidden_posterior_: dict[int, float]

    def _kind(self) -> str:
        """Return what outputs are, see :data:`~fathomless.families.graph.model.OUTPUTS`."""
        return "classes" if self._target_type() is ClassLabels else "numbers"

    def _likelihood(self, target: Target, saved: Collection[str] = ()) -> Likelihood:
        if isinstance(target, ClassLabels):
            return Categorical(len(target.labels))
        return Gaussian(len(cast(TargetScale, target).mean), noise="stated")

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> IndianChefs:
        return IndianChefs(inputs, outputs, kind=self._kind(), networks=self.networks)

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        if set(blueprint) != {"networks", "units", "links"}:
            raise DataError(f"its layout is {sorted(blueprint)}, not that of sampled graphs")

    def _describe(self) -> None:
        self.structure_ = self.model_.structure()
        self.hidden_posterior_ = dict(self.structure_.counts["hidden units"])
