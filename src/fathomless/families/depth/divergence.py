"""What each depth pays for the weights it uses: the coefficients of the divergences, and the divergences themselves."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fathomless.nn.layers import BayesianLayer, WeightPrior, prior_scales, weight_decay, weight_decay_of_many
from fathomless.nn.stacked import StackedLinear

__all__ = ["Charges", "charges"]


class Charges(NamedTuple):
    """What carries a divergence, and what each depth is charged for it.

    Attributes
    ----------
    owners : list of (nn.Module, str)
        Where each of the P point estimates with a prior is found.
    sizes : list of int
        Their elements.
    table : float64 Tensor, shape (m, P + Bayesian parts)
        What a depth pays for ½|θ|² of each point estimate (1/s² or 0), and for each Bayesian part's divergence.
    """

    owners: list[tuple[nn.Module, str]]
    sizes: list[int]
    table: Tensor

    def decay(self, sizes: Tensor, shared: bool) -> Tensor:
        """Return ½|θ|² of every point estimate, (P,).

        Parameters
        ----------
        sizes : Tensor of int64, shape (P,)
            The sizes, on the device.
        shared : bool
            Whether the parameters are stacked, as those of trainings side by side are.
        """
        present = [getattr(owner, name) for owner, name in self.owners]  # functional_call puts others in
        if shared and present:
            return 0.5 * torch.stack([p.square().sum() for p in present]).double()
        if any(isinstance(owner, StackedLinear) for owner, _ in self.owners[:1]):
            return weight_decay_of_many(present)
        return weight_decay(present, sizes)


def charges(
    parts: Sequence[tuple[str, nn.Module]], depths: Sequence[int], prior: WeightPrior, *, cumulative: bool
) -> Charges:
    """List what the depths of a network pay.

    Parameters
    ----------
    parts : sequence of (str, nn.Module)
        Layers, heads and shared head in use: "layers.3", "heads.2", "readout".
    depths : sequence of m int
        The support.
    prior : WeightPrior
        Of the point estimates.
    cumulative : bool
        Whether deeper networks pay for a head too.
    """
    owners, sizes, plain, bayesian = [], [], [], []
    for name, part in parts:
        kind, _, number = name.partition(".")
        alone = kind == "heads" and not cumulative
        first = 0 if kind == "readout" else int(number)
        paid = [float(depth == first if alone else depth >= first) for depth in depths]
        if isinstance(part, BayesianLayer):
            bayesian.append(paid)
            continue
        own = dict(part.named_parameters())
        for parameter, scale in prior_scales(part, prior).items():
            owner, _, leaf = parameter.rpartition(".")
            owners.append((part.get_submodule(owner), leaf))
            sizes.append(own[parameter].numel())
            plain.append([share / scale**2 for share in paid])
    table = torch.tensor([*plain, *bayesian], dtype=torch.float64, device="cpu").reshape(-1, len(depths)).T
    return Charges(owners, sizes, table.contiguous())
