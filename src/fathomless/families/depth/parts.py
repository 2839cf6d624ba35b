"""The parts of a network of unbounded depth: how one is applied, which of its heads are drawn, which options exist."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fathomless.nn.bayesian import WEIGHT_KINDS
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.nn.layers import BayesianLayer
from fathomless.nn.stacked import stacked_linear
from fathomless.system import checks
from fathomless.system.errors import DataError, FathomlessError

__all__ = [
    "applied",
    "chained",
    "check",
    "checked",
    "draw_heads",
    "drawn_heads",
    "freeze",
    "mean_of",
    "outputs",
    "unfreeze",
]

# what torch raises where shapes and types do not fit
_MISFITS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError)

Named = tuple[str, nn.Module]


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


def chained(
    layers: Sequence[Named],
    x: Tensor,
    generator: torch.Generator | None,
    divergences: dict[str, Tensor],
    *,
    plain: bool,
) -> list[Tensor]:
    """Run the layers one after the other; return the input and what each returns.

    Parameters
    ----------
    layers : sequence of (str, nn.Module)
        With their names.
    x : Tensor, shape (B, ...)
        Inputs.
    generator, divergences
        As :func:`applied` takes them.
    plain : bool
        Whether none is Bayesian, so that none need be asked.

    Raises
    ------
    DataError
        If a layer does not accept what the one before it returns; says which.
    """
    hidden, name, layer = [x], "", None
    try:
        for name, layer in layers:
            hidden.append(layer(hidden[-1]) if plain else applied(name, layer, hidden[-1], generator, divergences))
    except _MISFITS as error:
        raise _misfit(name, layer, hidden, error) from error
    return hidden


def outputs(
    heads: Sequence[Named],
    linear: Sequence[nn.Linear],
    hidden: Sequence[Tensor],
    generator: torch.Generator | None,
    divergences: dict[str, Tensor],
) -> Tensor:
    """Apply each head to its hidden state, at once if they are `linear`; (m, B, K).

    Raises
    ------
    DataError
        If a head does not accept what its layer returns, or heads return different shapes; says which.
    """
    try:
        if linear:
            return stacked_linear(linear, hidden)
        each = [applied(name, head, h, generator, divergences) for (name, head), h in zip(heads, hidden, strict=True)]
        return torch.stack(each)
    except _MISFITS as error:
        if isinstance(error, FathomlessError | torch.OutOfMemoryError):
            raise
        found: dict[str, Tensor] = {}
        for (name, head), h in zip(heads, hidden, strict=True):
            try:
                found[name] = applied(name, head, h, generator, {})
            except _MISFITS as own:
                raise _misfit(name, head, [h], own) from error
        told = ", ".join(f"{_words(name)} {_shown(f)}" for name, f in found.items())
        raise DataError(
            f"the heads do not fit together: {told}; each must return (B, K), K for all the same"
        ) from error


def checked(kind: str, depth: int, part: object, others: Iterable[Named]) -> nn.Module:
    """Return what a user's function built, if it is a module of its own whose parameters torch can find.

    Raises
    ------
    DataError
        If it is none, keeps parameters where torch does not look for them, or shares some with `others`, the parts that
        were built before.
    """
    name = _words("readout" if kind == "readout" else f"{kind}s.{depth}")
    if not isinstance(part, nn.Module):
        raise DataError(
            f"{name} is a {type(part).__name__}; {kind}(depth) must return a torch.nn.Module for each depth"
        )
    known = {id(p) for p in part.parameters()}
    for inside in part.modules():
        for attribute, value in vars(inside).items():
            if any(id(p) not in known for p in _parameters(value)):
                raise DataError(
                    f"{name} has a {type(inside).__name__} that keeps parameters in the {type(value).__name__} "
                    f"{attribute!r}, where torch does not find them: they would not be trained. Use nn.ModuleList, "
                    "nn.ModuleDict, nn.Parameter or nn.ParameterList"
                )
    for other, built in others:
        if any(id(p) in known for p in built.parameters()):
            advice = "; for one head at all depths give shared_head" if kind == "head" else ""
            raise DataError(
                f"{name} has parameters of {_words(other)}: {kind}(depth) returned the same module for several depths, "
                "or parts of it, whose weights would be charged once for each. It must return a new module at every "
                f"call{advice}"
            )
    return part


def _parameters(value: object) -> list[Tensor]:
    """Return the parameters in an attribute of a module: those of modules, and tensors that gradients end in."""
    if isinstance(value, list | tuple | dict):
        each = value.values() if isinstance(value, dict) else value
        return [p for one in each if not isinstance(one, list | tuple | dict) for p in _parameters(one)]
    if isinstance(value, nn.Module):
        return list(value.parameters())
    return [value] if isinstance(value, Tensor) and value.is_leaf and value.requires_grad else []


def _misfit(name: str, part: nn.Module | None, hidden: Sequence[object], error: Exception) -> Exception:
    """Say which part failed, on what, and which one returned that; an error of ours is returned as it is."""
    if isinstance(error, FathomlessError | torch.OutOfMemoryError):
        return error
    kind, _, number = name.partition(".")
    before = int(number) - (kind == "layers") if number else 0
    source = "which the heads give it" if not number else f"which layer {before} returns" if before else "the input"
    return DataError(
        f"{_words(name)}, a {type(part).__name__}, cannot be applied to {_shown(hidden[-1])}, {source}: {error}. What "
        "layer(k) returns must be one tensor, in the model's type, that layer(k + 1) and head(k) accept"
    )


def _words(name: str) -> str:
    """Return how people name a part."""
    kind, _, number = name.partition(".")
    return f"{kind.removesuffix('s')} {number}" if number else "the shared head"


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def freeze(parts: Iterable[Named], in_use: Iterable[nn.Module]) -> set[str]:
    """Let parameters of parts that are not in use have no gradient; return the names of those that could be trained."""
    kept, names = {id(p) for part in in_use for p in part.parameters()}, set()
    for prefix, part in parts:
        for name, p in part.named_parameters(prefix):
            if id(p) not in kept and p.requires_grad:
                p.requires_grad_(False).grad = None
                names.add(name)
    return names


def unfreeze(module: nn.Module, names: set[str]) -> None:
    """Let parameters be trained again that were put to rest, as far as they still exist, and forget their names."""
    for name, p in module.named_parameters():
        if name in names:
            p.requires_grad_()
    names.clear()


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
