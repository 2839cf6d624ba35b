"""Calls of modules with other weights, which leave the modules as they are.

``torch.func.functional_call`` puts the weights into the module while it runs. Two threads that predict with one module
then see each other's weights, and what is put back may be the draw of the other thread. A call here runs on copies of
the modules without copies of their tensors, as ``torch.nn.parallel.replicate`` does.
"""

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.system.errors import DataError

__all__ = ["called", "with_tensors"]

#: From the identity of a module or tensor to what replaces it.
_Swaps = dict[int, Any]

_USUAL = vars(nn.Module()).keys()  # attributes of every module
_HELD = ("_parameters", "_modules")  # those of them that are copied; a buffer that is assigned stays in the original


def called(module: nn.Module, tensors: Mapping[str, Tensor], *given: Tensor) -> Any:
    """Apply a module with other parameters; the module is not changed and may be in use by other threads.

    Parameters
    ----------
    module : nn.Module
        Any module.
    tensors : mapping of str to Tensor
        Names of parameters, as ``named_parameters`` lists them, and what takes their place. A parameter that has
        several names is replaced everywhere.
    given : Tensors
        Inputs of the module.

    Returns
    -------
    Any
        The output of the module.

    Raises
    ------
    DataError
        For compiled modules of ``torch.jit``, whose tensors cannot be replaced.

    Examples
    --------
    >>> linear = nn.Linear(2, 1)
    >>> called(linear, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, torch.ones(3, 2)).tolist()
    [[2.0], [2.0], [2.0]]
    """
    return with_tensors(module, tensors)(*given)


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a module that holds other tensors in place of some parameters and shares everything else.

    Buffers are shared: batch statistics that a call updates are those of the original. Modules and parameters that are
    also plain attributes, or inside lists, tuples and dictionaries that are, are replaced there too. A function that
    refers to a module by its closure still calls the original.
    """
    parts = dict(module.named_modules())  # each once
    for part in parts.values():
        if isinstance(part, torch.jit.ScriptModule):
            raise DataError(
                f"a {type(part).__name__} compiled by torch.jit was given, and its weights are to be replaced; give "
                "the module as it was before torch.jit.script or torch.jit.trace"
            )
    swaps: _Swaps = {id(part): object.__new__(type(part)) for part in parts.values()}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        swaps[id(parts[path]._parameters[last])] = tensor
    for part in parts.values():
        own = vars(part).copy()
        for name in _HELD:
            if own[name]:
                own[name] = {key: swaps.get(id(value), value) for key, value in own[name].items()}
        for name in own.keys() - _USUAL:
            own[name] = _swapped(own[name], swaps)
        swaps[id(part)].__dict__ = own
    found: nn.Module = swaps[id(module)]
    return found


def _swapped(value: Any, swaps: _Swaps) -> Any:
    """Replace modules and tensors inside plain containers."""
    kind = type(value)
    if kind is dict:
        return {name: _swapped(one, swaps) for name, one in value.items()}
    if kind is list or kind is tuple:
        return kind(_swapped(one, swaps) for one in value)
    if kind is MethodType and id(value.__self__) in swaps:
        return MethodType(value.__func__, swaps[id(value.__self__)])
    return swaps.get(id(value), value)
