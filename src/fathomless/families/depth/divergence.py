"""Divergences of the weights, and their coefficients for each depth: a depth is charged for the weights it uses."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fathomless.nn.layers import BayesianLayer, WeightPrior, prior_scales, weight_decay, weight_decay_of_many
from fathomless.nn.stacked import StackedLinear

__all__ = ["Charges", "tabulate_charges"]


class Charges(NamedTuple):
    """Parameters with a divergence, and the coefficient of each divergence at each depth.

    Attributes
    ----------
    owners : list of (nn.Module, str)
        Module and attribute name of each of the P point estimates with a prior.
    sizes : list of int
        Number of elements of each point estimate.
    table : float64 Tensor, shape (m, P + Bayesian parts)
        Coefficient at each depth of ½|θ|² of each point estimate (1/s² or 0), and of the divergence of each Bayesian
        part (1 or 0).
    """

    owners: list[tuple[nn.Module, str]]
    sizes: list[int]
    table: Tensor

    def decay(self, sizes: Tensor, shared: bool) -> Tensor:
        """Return ½|θ|² of every point estimate, (P,).

        Parameters
        ----------
        sizes : Tensor of int64, shape (P,)
            Number of elements of each, on the device of the parameters.
        shared : bool
            True if ``functional_call`` replaces the parameters by those of several trainings in parallel.
        """
        present = [getattr(owner, name) for owner, name in self.owners]  # looked up now: they may be replaced
        if shared and present:
            return 0.5 * torch.stack([p.square().sum() for p in present]).double()
        if any(isinstance(owner, StackedLinear) for owner, _ in self.owners[:1]):
            return weight_decay_of_many(present)
        return weight_decay(present, sizes)


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
    plain, bayesian = [], []  # coefficients of point estimates and of Bayesian parts
    for name, part in parts:
        kind, _, number = name.partition(".")
        one_depth = kind == "heads" and not cumulative
        first = 0 if kind == "readout" else int(number)
        used = [float(depth == first if one_depth else depth >= first) for depth in depths]
        if isinstance(part, BayesianLayer):
            bayesian.append(used)
            continue
        parameters = dict(part.named_parameters())
        for parameter, scale in prior_scales(part, prior).items():
            owner, _, leaf = parameter.rpartition(".")
            owners.append((part.get_submodule(owner), leaf))
            sizes.append(parameters[parameter].numel())
            plain.append([share / scale**2 for share in used])
    table = torch.tensor([*plain, *bayesian], dtype=torch.float64, device="cpu").reshape(-1, len(depths)).T
    return Charges(owners, sizes, table.contiguous())
