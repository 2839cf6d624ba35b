"""Construction of sampled graphs from options."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from fathomless.estimators.networks import Networks
from fathomless.families.graph.model import IndianChefs
from fathomless.families.graph.options import GraphOptions
from fathomless.posterior.fit_diagnostics import ChainDiagnostics, Diagnostics
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.errors import DataError

__all__ = ["GraphNetworks"]


class GraphNetworks(GraphOptions, Networks):
    """Sampled graphs with an unlimited number of hidden units."""

    diagnostics_class: ClassVar[type[Diagnostics]] = ChainDiagnostics
    on_processor = True  # chains run on the CPU

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> IndianChefs:
        return IndianChefs(
            inputs, likelihood.outputs, kind="classes" if likelihood.discrete else "numbers", networks=self.networks
        )

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        if set(blueprint) != {"networks", "units", "links"}:
            raise DataError(f"its layout is {sorted(blueprint)}, not that of sampled graphs")
