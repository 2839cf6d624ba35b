"""Programs: what a function does to the rows of a tensor, written down as a plain module.

Python that computes with tensors is run once, on rows that have a shape and no values. Whatever does not depend on
them is computed for good (weights that are drawn, choices that are read from a posterior) and kept as a constant; all
else becomes a step of the program, in PyTorch's basic operations. So a program needs nothing of the code that it was
made of.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from fathomless.system.errors import DataError

__all__ = ["program"]

_PARTED = {"split", "chunk"}
_BY_VALUE = ("data-dependent", "value out of a tracing tensor")


def program(function: Callable[[Tensor], Any], rows: Tensor) -> fx.GraphModule:
    """Write down what a function does to rows, for any number of them.

    Parameters
    ----------
    function : callable
        (N, ...) -> tensors, alone or in lists and dicts. What it draws, it draws without regard to the rows.
    rows : Tensor, shape (N, ...)
        Some rows, N > 1: their type and shape matter, their values do not.

    Returns
    -------
    fx.GraphModule
        The same function, whose constants are buffers.

    Raises
    ------
    DataError
        If steps are chosen by the values of the rows, or numbers are drawn for each row.

    Examples
    --------
    >>> weight = torch.ones(3, 2)
    >>> double = program(lambda x: 2.0 * x @ weight, torch.zeros(4, 3))
    >>> double(torch.ones(2, 3))
    tensor([[6., 6.],
            [6., 6.]])
    """

    def traced(x: Tensor) -> Any:
        with torch.no_grad(), _Known():
            return function(x)

    try:
        written = make_fx(traced, tracing_mode="symbolic", _allow_non_fake_inputs=True)(rows)
    except (RuntimeError, GuardOnDataDependentSymNode) as error:
        if not any(sign in str(error) for sign in _BY_VALUE):
            raise
        raise DataError(
            "the network chooses its steps by the values of the rows, which a program cannot "
            f"({str(error).partition(chr(10))[0]}); fit with steps that are given"
        ) from error
    return _folded(written)


class _Known(TorchFunctionMode):
    """Compute at once what does not depend on the rows, and leave rows in one piece."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if not any(map(_depends, leaves)):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if any(isinstance(leaf, torch.Generator) for leaf in leaves):
            raise DataError("the network draws numbers for each row anew, which a program cannot")
        if getattr(func, "__name__", "") in _PARTED and _sized_by_rows(*args, **kwargs):
            return (args[0],)
        return func(*args, **kwargs)


def _depends(value: Any) -> bool:
    """Whether a value depends on the rows; one inside a transformation of functions may."""
    if isinstance(value, Tensor):
        return isinstance(value, FakeTensor) or is_functorch_wrapped_tensor(value)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _sized_by_rows(x: Tensor, parts: Any, dim: int = 0) -> bool:
    """Whether it depends on the number of rows how many parts there are: parts only save memory."""
    return isinstance(parts, torch.SymInt) or isinstance(x.shape[dim], torch.SymInt)


def _folded(written: fx.GraphModule) -> fx.GraphModule:
    """Compute the steps that are left and do not depend on the rows, and keep their results as buffers."""
    known: set[fx.Node] = set()
    for node in written.graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (node.op == "call_function" and all(one in known for one in inputs)):
            known.add(node)
    for node in written.graph.nodes:  # what the rows are written into is not known, nor what it is a part of
        if node not in known and getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            pending = list(node.all_input_nodes)
            while pending:
                one = pending.pop()
                if one in known and one.op != "get_attr":
                    known.discard(one)
                    pending += [*one.all_input_nodes, *one.users]
    values: dict[fx.Node, Any] = {}
    copies: dict[int, Tensor] = {}  # of tensors that several steps use
    for node in written.graph.nodes:
        if node not in known:
            continue
        if node.op == "get_attr":
            constant = getattr(written, node.target)
            values[node] = copies.setdefault(id(constant), constant.detach().clone())
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    names: dict[int, str] = {}
    for place, (node, value) in enumerate(values.items()):
        if isinstance(value, Tensor) and any(user not in known for user in node.users):
            name = names.setdefault(id(value), f"constant_{place}")
            if name not in written._buffers:
                written.register_buffer(name, value.clone(memory_format=torch.contiguous_format))
            with written.graph.inserting_before(node):
                kept = written.graph.get_attr(name)
            node.replace_all_uses_with(kept, delete_user_cb=lambda user: user not in known)
    for node in reversed(written.graph.nodes):
        if node in known and not node.users:
            written.graph.erase_node(node)
    for used in {str(node.target) for node in known if node.op == "get_attr"}:
        delattr(written, used)
    written.recompile()
    return written
