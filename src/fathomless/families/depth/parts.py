"""Parts of a network of unbounded depth: application of layers and heads, freezing, checks of user-built modules."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fathomless.nn.bayesian import WEIGHT_KINDS
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.nn.layers import BayesianLayer, WeightPrior
from fathomless.nn.stacked import StackedLinear, apply_stackable
from fathomless.posterior.laws import DepthLaw, DepthPrior
from fathomless.system import checks
from fathomless.system.errors import DataError, FathomlessError

__all__ = [
    "apply_heads",
    "apply_part",
    "check_kinds",
    "check_options",
    "check_part",
    "count_head_bases",
    "freeze",
    "keep_inputs",
    "mean_head",
    "restore_gaussian_heads",
    "restore_inputs",
    "run_layers",
    "unfreeze",
]

# exceptions that torch raises if shapes or types do not match
_MISFITS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError)

Named = tuple[str, nn.Module]


def apply_part(
    name: str, part: nn.Module, x: Tensor, generator: torch.Generator | None, divergences: dict[str, Tensor]
) -> Tensor:
    """Apply a part and record the divergence of a Bayesian one (once, even if several depths share it)."""
    output: Tensor
    if isinstance(part, BayesianLayer):
        output, divergences[name] = part(x, generator)
    else:
        output = part(x)
    return output


def run_layers(
    layers: Sequence[Named],
    x: Tensor,
    generator: torch.Generator | None,
    divergences: dict[str, Tensor],
    *,
    plain: bool,
) -> list[Tensor]:
    """Run the layers in sequence; return the input and all hidden states.

    Parameters
    ----------
    layers : sequence of (str, nn.Module)
        Layers with their names.
    x : Tensor, shape (B, ...)
        Inputs.
    generator, divergences
        As of :func:`apply_part`.
    plain : bool
        True if no layer is Bayesian, which skips a check for each.

    Raises
    ------
    DataError
        If a layer does not accept the output of the layer before it; the message names both.
    """
    hidden = [x]
    name = ""
    layer = None  # the error names the last one applied
    try:
        for name, layer in layers:
            hidden.append(layer(hidden[-1]) if plain else apply_part(name, layer, hidden[-1], generator, divergences))
    except _MISFITS as error:
        raise _explain_misfit(name, layer, hidden, error) from error
    return hidden


def apply_heads(
    heads: Sequence[Named],
    linear: Sequence[nn.Linear | StackedLinear],
    hidden: Sequence[Tensor],
    generator: torch.Generator | None,
    divergences: dict[str, Tensor],
) -> Tensor:
    """Return the outputs (m, B, K) of the heads; linear heads are applied in one function.

    Raises
    ------
    DataError
        If a head does not accept the output of its layer, or heads return different shapes; the message names them.
    """
    try:
        if linear:
            return apply_stackable(linear, hidden)
        values = [
            apply_part(name, head, h, generator, divergences) for (name, head), h in zip(heads, hidden, strict=True)
        ]
        return torch.stack(values)
    except _MISFITS as error:
        if isinstance(error, FathomlessError | torch.OutOfMemoryError):
            raise
        # apply the heads one at a time, to find the one that fails, or else the shapes that differ
        by_name: dict[str, Tensor] = {}
        for (name, head), h in zip(heads, hidden, strict=True):
            try:
                by_name[name] = apply_part(name, head, h, generator, {})
            except _MISFITS as cause:
                raise _explain_misfit(name, head, [h], cause) from error
        shapes = ", ".join(f"{_describe_part(name)} {_describe_value(f)}" for name, f in by_name.items())
        raise DataError(
            f"the heads return different shapes: {shapes}; each must return (B, K) with the same K"
        ) from error


@torch.no_grad()
def keep_inputs(linear: nn.Linear, kept: Tensor) -> None:
    """Leave out inputs of a linear map, in place; index −1 is an input with the weight 0."""
    weight = linear.weight
    kept = kept.to(weight.device)
    linear.weight = nn.Parameter(weight[:, kept.clamp(min=0)] * (kept >= 0), requires_grad=weight.requires_grad)
    linear.in_features = len(kept)


@torch.no_grad()
def restore_inputs(linear: nn.Linear, kept: Tensor, count: int) -> None:
    """Undo :func:`keep_inputs` in place, for a map of `count` inputs; the weights of the others are 0."""
    weight = linear.weight
    kept = kept.to(weight.device)
    whole = weight.new_zeros(len(weight), count)
    whole[:, kept[kept >= 0]] = weight[:, kept >= 0]
    linear.weight = nn.Parameter(whole, requires_grad=weight.requires_grad)
    linear.in_features = count


def check_part(kind: str, depth: int, part: object, others: Iterable[Named]) -> nn.Module:
    """Check a module that a user's function returned, and return it.

    Raises
    ------
    DataError
        If it is not a module, has parameters that are not registered, or shares parameters with `others`, the parts
        built before.
    """
    name = _describe_part("readout" if kind == "readout" else f"{kind}s.{depth}")
    if not isinstance(part, nn.Module):
        raise DataError(
            f"{name} is a {type(part).__name__}; {kind}(depth) must return a torch.nn.Module for each depth"
        )
    known = {id(p) for p in part.parameters()}
    for inside in part.modules():
        for attribute, value in vars(inside).items():
            if any(id(p) not in known for p in _parameters(value)):
                raise DataError(
                    f"{name} has a {type(inside).__name__} with parameters in the {type(value).__name__} "
                    f"{attribute!r}, where torch does not find them; they would not be trained: use nn.ModuleList, "
                    "nn.ModuleDict, nn.Parameter or nn.ParameterList"
                )
    for other, built in others:
        if any(id(p) in known for p in built.parameters()):
            advice = "; for one head at all depths, give shared_head" if kind == "head" else ""
            raise DataError(
                f"{name} shares parameters with {_describe_part(other)}: {kind}(depth) returned the same module, or "
                "parts of it, for several depths, and these weights would be charged several times. It must return a "
                f"new module at every call{advice}"
            )
    return part


def _parameters(value: object) -> list[Tensor]:
    """Return the parameters in an attribute of a module: those of modules, and leaf tensors that require gradients."""
    if isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return [p for item in items if not isinstance(item, list | tuple | dict) for p in _parameters(item)]
    if isinstance(value, nn.Module):
        return list(value.parameters())
    return [value] if isinstance(value, Tensor) and value.is_leaf and value.requires_grad else []


def _explain_misfit(name: str, part: nn.Module | None, hidden: Sequence[object], error: Exception) -> Exception:
    """Return an error that names the part that failed, its input and the source of that; library errors unchanged."""
    if isinstance(error, FathomlessError | torch.OutOfMemoryError):
        return error
    kind, _, number = name.partition(".")
    before = int(number) - (kind == "layers") if number else 0
    if not number:
        source = "the output of the heads"
    elif before:
        source = f"the output of layer {before}"
    else:
        source = "the input"
    return DataError(
        f"{_describe_part(name)}, a {type(part).__name__}, cannot be applied to {_describe_value(hidden[-1])}, "
        f"{source}: {error}. layer(k) must return one tensor in the type of the model, accepted by layer(k + 1) and "
        "head(k)"
    )


def _describe_part(name: str) -> str:
    """Return the name of a part in messages, such as "layer 3"."""
    kind, _, number = name.partition(".")
    return f"{kind.removesuffix('s')} {number}" if number else "the shared head"


def _describe_value(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def freeze(parts: Iterable[Named], in_use: Iterable[nn.Module]) -> set[str]:
    """Disable gradients of the parameters of parts that are not in use; return the names of these parameters."""
    used = {id(p) for part in in_use for p in part.parameters()}
    names = set()
    for prefix, part in parts:
        for name, p in part.named_parameters(prefix):
            if id(p) not in used and p.requires_grad:
                p.requires_grad_(False).grad = None  # None rather than zero: optimisers skip the parameter
                names.add(name)
    return names


def unfreeze(module: nn.Module, names: set[str]) -> None:
    """Enable gradients of frozen parameters that still exist, and clear the set of their names."""
    for name, p in module.named_parameters():
        if name in names:
            p.requires_grad_()
    names.clear()


def count_head_bases(groups: Iterable[nn.ModuleDict]) -> dict[str, int]:
    """Return the number of bases of each Gaussian head by depth, as blueprints store it."""
    return {
        depth: len(head.basis) for heads in groups for depth, head in heads.items() if isinstance(head, GaussianHead)
    }


def restore_gaussian_heads(heads: nn.ModuleDict, drawn: Mapping[str, int]) -> None:
    """Replace linear heads by Gaussian ones of the given numbers of bases; a ``state_dict`` then sets their values."""
    for depth, head in list(heads.items()):
        if depth in drawn and isinstance(head, nn.Linear):
            heads[depth] = GaussianHead(head, drawn[depth])


def mean_head(head: nn.Module) -> nn.Module:
    """Return the mean of a head with a posterior; other heads are returned unchanged."""
    return head.mean_map() if isinstance(head, GaussianHead) else head


def check_options(min_depth: int, max_depth: int | None, weights: str, head_divergence: str, growth: str) -> None:
    """Check the options of a network of unbounded depth; raise a DataError if one is not allowed."""
    if min_depth < 0:
        raise DataError(f"min_depth={min_depth} was given; 0 (a linear model) or more is allowed")
    if max_depth is not None and max_depth < max(min_depth, 1):
        raise DataError(f"max_depth={max_depth} was given; at least {max(min_depth, 1)} is needed")
    checks.choice("weights", weights, WEIGHT_KINDS)
    checks.choice("head_divergence", head_divergence, ("own", "cumulative"))
    checks.choice("growth", growth, ("default", "identity"))


def check_kinds(law: object, prior: object, weight_prior: object) -> None:
    """Raise DataError if a law or a prior is neither None nor an object of its class."""
    given: dict[str, tuple[object, type, str]] = {
        "law": (law, DepthLaw, "TruncatedPoisson(2.0) or FixedDepth((1,))"),
        "prior": (prior, DepthPrior, "PoissonPrior(0.5)"),
        "weight_prior": (weight_prior, WeightPrior, "WeightPrior(scale=1.0)"),
    }
    for name, (value, kind, example) in given.items():
        if value is not None and not isinstance(value, kind):
            raise DataError(f"{name}={value!r:.80} was given; a {kind.__name__} is allowed, such as {example}")
