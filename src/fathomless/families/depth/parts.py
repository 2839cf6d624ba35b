"""The parts of a network of unbounded depth: how one is applied, which of its heads are drawn, which options exist."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from fathomless.nn.bayesian import WEIGHT_KINDS
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.nn.layers import BayesianLayer
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["applied", "check", "draw_heads", "drawn_heads", "mean_of"]


def applied(
    name: str, part: nn.Module, x: Tensor, generator: torch.Generator | None, divergences: dict[str, Tensor]
) -> Tensor:
    """Apply a part; a Bayesian one also reports its divergence (once, if several depths share it)."""
    output: Tensor
    if isinstance(part, BayesianLayer):
        output, divergences[name] = part(x, generator)
    else:
        output = part(x)
    return output


def drawn_heads(each: Iterable[nn.ModuleDict]) -> dict[str, int]:
    """Return the depth of every normal head, with its number of bases: what a blueprint tells of heads of networks."""
    return {depth: len(head.basis) for heads in each for depth, head in heads.items() if isinstance(head, GaussianHead)}


def draw_heads(heads: nn.ModuleDict, drawn: Mapping[str, int]) -> None:
    """Make linear heads normal ones, where :func:`drawn_heads` says so; their values come from a ``state_dict``."""
    for depth, head in list(heads.items()):
        if depth in drawn and isinstance(head, nn.Linear):
            heads[depth] = GaussianHead(head, drawn[depth])


def mean_of(head: nn.Module) -> nn.Module:
    """Return the mean of a head with a posterior, and any other head as it is."""
    return head.mean_map() if isinstance(head, GaussianHead) else head


def check(min_depth: int, max_depth: int | None, weights: str, head_divergence: str, growth: str) -> None:
    """Refuse options of a network of unbounded depth that are not allowed, with a DataError."""
    if min_depth < 0:
        raise DataError(f"min_depth={min_depth} was given; 0 (a linear model) or more is allowed")
    if max_depth is not None and max_depth < max(min_depth, 1):
        raise DataError(f"max_depth={max_depth} was given; at least {max(min_depth, 1)} is needed")
    checks.choice("weights", weights, WEIGHT_KINDS)
    checks.choice("head_divergence", head_divergence, ("own", "cumulative"))
    checks.choice("growth", growth, ("default", "identity"))
