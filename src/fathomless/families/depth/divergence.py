"""Divergences of the weights, and their coefficients for each depth: a depth is charged for the weights it uses."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from fathomless.nn.layers import (
    BayesianLayer,
    WeightPrior,
    column_decay,
    prior_scales,
    weight_decay,
    weight_decay_of_many,
)
from fathomless.nn.stacked import Apart, StackedLinear

__all__ = ["Charges", "find_first", "tabulate_charges"]


class Charges(NamedTuple):
    """Parameters with a divergence, and the coefficient of each divergence at each depth.

    Attributes
    ----------
    owners : list of (nn.Module, str)
        Module and attribute name of each of the P point estimates with a Gaussian prior.
    sizes : list of int
        Number of elements of each of these.
    first : list of nn.Module
        First linear map of the network, or of each of several networks, if its weights have a scale for each column.
    prior : WeightPrior
        Its prior.
    table : float64 Tensor, shape (m, P + first + Bayesian parts)
        Coefficient at each depth of ½|θ|² of each point estimate (1/s² or 0), of the decay of the first map, and of the
        divergence of each Bayesian part (1 or 0).
    """

    owners: list[tuple[nn.Module, str]]
    sizes: list[int]
    first: list[nn.Module]
    prior: WeightPrior
    table: Tensor

    def decay(self, sizes: Tensor, shared: bool) -> Tensor:
        """Return ½|θ|² of every point estimate, and the decay of the first map, (P,) or (P + 1,).

        Parameters
        ----------
        sizes : Tensor of int64, shape (P,)
            Number of elements of each, on the device of the parameters.
        shared : bool
            True if ``functional_call`` replaces the parameters by those of several trainings in parallel.
        """
        present = [getattr(owner, name) for owner, name in self.owners]  # looked up now: they may be replaced
        if shared and present:
            decay = 0.5 * torch.stack([p.square().sum() for p in present]).double()
        elif any(isinstance(owner, StackedLinear) for owner, _ in self.owners[:1]):
            decay = weight_decay_of_many(present)
        else:
            decay = weight_decay(present, sizes)
        if not self.first:
            return decay
        weights = [cast(Tensor, linear.weight) for linear in self.first]
        of_first = [column_decay(weight, self.prior.scale, self.prior.inputs) for weight in weights]
        return torch.cat([decay, torch.stack(of_first).sum()[None]])


def tabulate_charges(
    parts: Sequence[tuple[str, nn.Module]], depths: Sequence[int], prior: WeightPrior, *, cumulative: bool
) -> Charges:
    """Compute the coefficients of all divergences at each depth of a network.

    Parameters
    ----------
    parts : sequence of (str, nn.Module)
        Layers, heads and shared head in use: "layers.3", "heads.2", "readout".
    depths : sequence of m int
        Depths of the support.
    prior : WeightPrior
        Prior of the point estimates.
    cumulative : bool
        True if deeper networks are charged for a head, too.
    """
    owners, sizes = [], []
    plain, column, bayesian = [], [], []  # coefficients of point estimates, of the first map and of Bayesian parts
    layer = dict(parts).get("layers.1")
    first = find_first(layer) if prior.columns and layer is not None else []
    gaussian = replace(prior, columns=False)
    for name, part in parts:
        kind, _, number = name.partition(".")
        one_depth = kind == "heads" and not cumulative
        at = 0 if kind == "readout" else int(number)
        used = [float(depth == at if one_depth else depth >= at) for depth in depths]
        if isinstance(part, BayesianLayer):
            bayesian.append(used)
            continue
        parameters = dict(part.named_parameters())
        for parameter, scale in prior_scales(part, gaussian).items():
            path, _, leaf = parameter.rpartition(".")
            owner = part.get_submodule(path)
            if owner in first and leaf == "weight":
                column = [used]
                continue
            owners.append((owner, leaf))
            sizes.append(parameters[parameter].numel())
            plain.append([share / scale**2 for share in used])
    table = torch.tensor([*plain, *column, *bayesian], dtype=torch.float64, device="cpu").reshape(-1, len(depths)).T
    return Charges(owners, sizes, first, prior, table.contiguous())


def find_first(layer: nn.Module) -> list[nn.Module]:
    """Return the first linear map of a layer, one for each network of stacked ones; [] if other weights come first."""
    for inner in layer.modules():
        if isinstance(inner, BayesianLayer):
            return []
        if isinstance(inner, Apart):
            return [linear for member in inner.members for linear in find_first(member)]
        if list(inner.parameters(recurse=False)):
            return [inner] if isinstance(inner, nn.Linear | StackedLinear) and inner.weight.shape[-1] else []
    return []
