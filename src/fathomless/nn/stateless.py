"""Calls of modules with other weights, without changes to the modules.

``torch.func.functional_call`` replaces the weights of the module during the call. Two threads that predict with one
module would then use each other's weights, and might restore a draw of the other thread. A call here runs on copies of
the modules without copies of their tensors, as in ``torch.nn.parallel.replicate``.
"""

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.system.errors import DataError

__all__ = ["call_with", "refuse_compiled", "with_tensors"]

#: Replacements of modules and tensors, by the id of the original.
_Swaps = dict[int, Any]

_USUAL = vars(nn.Module()).keys()  # attributes of every module
_HELD = ("_parameters", "_modules")  # usual attributes to copy; buffers are shared with the original


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], *inputs: Tensor) -> Any:
    """Apply a module with other parameters, without changing it; other threads may use it at the same time.

    Parameters
    ----------
    module : nn.Module
        Any module.
    tensors : mapping of str to Tensor
        Replacements of parameters by name, as in ``named_parameters``. A parameter with several names is replaced
        everywhere.
    inputs : Tensors
        Inputs of the module.

    Returns
    -------
    Any
        Output of the module.

    Raises
    ------
    DataError
        For modules compiled by ``torch.jit``, whose tensors cannot be replaced.

    Examples
    --------
    >>> linear = nn.Linear(2, 1)
    >>> tensors = {"weight": torch.ones(1, 2, device="cpu"), "bias": torch.zeros(1, device="cpu")}
    >>> call_with(linear, tensors, torch.ones(3, 2, device="cpu")).tolist()
    [[2.0], [2.0], [2.0]]
    """
    return with_tensors(module, tensors)(*inputs)


def refuse_compiled(module: nn.Module) -> None:
    """Raise an error for a module with compiled code inside, which uses the weights that it was compiled with."""
    for part in module.modules():
        kind = type(part).__name__
        if isinstance(part, torch.jit.ScriptModule):
            raise DataError(
                f"a {kind} compiled by torch.jit was given, whose weights cannot be replaced; give the original "
                "module, without torch.jit.script or torch.jit.trace"
            )
        if kind == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None:
            raise DataError(
                f"a module compiled by torch.compile was given ({kind}), whose weights cannot be replaced; give the "
                "original module. After a fit, the result of to_module of an estimator can be compiled"
            )


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a module with other tensors in place of some parameters, which shares everything else.

    Buffers are shared, so that a call updates the batch statistics of the original. Modules and parameters in plain
    attributes, and in lists, tuples and dictionaries there, are replaced too. A function with a module in its closure
    still calls the original.
    """
    parts = dict(module.named_modules())  # each once
    refuse_compiled(module)
    swaps: _Swaps = {id(part): object.__new__(type(part)) for part in parts.values()}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        swaps[id(parts[path]._parameters[last])] = tensor
    for part in parts.values():
        attributes = vars(part).copy()
        for name in _HELD:
            if attributes[name]:
                attributes[name] = {key: swaps.get(id(value), value) for key, value in attributes[name].items()}
        for name in attributes.keys() - _USUAL:
            attributes[name] = _swap(attributes[name], swaps)
        swaps[id(part)].__dict__ = attributes
    copied: nn.Module = swaps[id(module)]
    return copied


def _swap(value: Any, swaps: _Swaps) -> Any:
    """Replace modules and tensors inside plain containers."""
    kind = type(value)
    if kind is dict:
        return {name: _swap(entry, swaps) for name, entry in value.items()}
    if kind is list or kind is tuple:
        return kind(_swap(entry, swaps) for entry in value)
    if kind is MethodType and id(value.__self__) in swaps:
        return MethodType(value.__func__, swaps[id(value.__self__)])
    return swaps.get(id(value), value)
