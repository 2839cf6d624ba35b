"""Tracing of a function of the rows of a tensor into a plain module.

The function is run once, on fake rows with a shape and without values. Values that do not depend on the rows, such as
drawn weights and choices from a posterior, are computed once and stored as constants. All other operations become nodes
of the graph, in basic operations of PyTorch. The module does not need the code of the function.
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

__all__ = ["trace"]

_PARTED = {"split", "chunk"}
_BY_VALUE = ("data-dependent", "value out of a tracing tensor")


def trace(function: Callable[[Tensor], Any], rows: Tensor) -> fx.GraphModule:
    """Trace a function of rows into a module for any number of rows.

    Parameters
    ----------
    function : callable
        (N, ...) -> tensors, alone or in lists and dicts. Random draws must not depend on the rows.
    rows : Tensor, shape (N, ...)
        Example rows, N > 1; only their data type and shape matter.

    Returns
    -------
    fx.GraphModule
        The same function; its constants are buffers.

    Raises
    ------
    DataError
        If the operations depend on the values of the rows, numbers are drawn for each row, or the function uses the
        number of rows as a plain integer.

    Examples
    --------
    >>> weight = torch.ones(3, 2)
    >>> double = trace(lambda x: 2.0 * x @ weight, torch.zeros(4, 3))
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
            "the operations of the network depend on the values of the rows, which cannot be exported "
            f"({str(error).partition(chr(10))[0]}); fit with a fixed number of steps"
        ) from error
    module = _fold_constants(written)
    _check_any_number_of_rows(module, function, rows)
    return module


@torch.no_grad()
def _check_any_number_of_rows(module: fx.GraphModule, function: Callable[[Tensor], Any], rows: Tensor) -> None:
    """Raise DataError if the module does not have the shapes of the function for one more row."""
    more = torch.cat([rows, rows[:1]])
    wanted = [leaf.shape for leaf in tree_leaves(function(more))]
    try:
        same = [leaf.shape for leaf in tree_leaves(module(more))] == wanted
    except RuntimeError:  # shapes that do not fit
        same = False
    if not same:
        raise DataError(
            f"the network was exported for {len(rows)} rows only, since it uses the number of rows as an integer, as "
            "len(x) or int(x.shape[0]); use x.shape[0], or x.new_zeros(x.shape[0], ...) for new tensors"
        )


class _Known(TorchFunctionMode):
    """Compute values that do not depend on the rows at once, and do not split the rows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if not any(map(_depends, leaves)):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if any(isinstance(leaf, torch.Generator) for leaf in leaves):
            raise DataError("the network draws random numbers for each row, which cannot be exported")
        if getattr(func, "__name__", "") in _PARTED and _is_sized_by_rows(*args, **kwargs):
            return (args[0],)
        return func(*args, **kwargs)


def _depends(value: Any) -> bool:
    """Return True if a value may depend on the rows, as values inside a function transform may."""
    if isinstance(value, Tensor):
        return isinstance(value, FakeTensor) or is_functorch_wrapped_tensor(value)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_sized_by_rows(x: Tensor, parts: Any, dim: int = 0) -> bool:
    """Return True if the number of parts depends on the number of rows; such parts only save memory."""
    return isinstance(parts, torch.SymInt) or isinstance(x.shape[dim], torch.SymInt)


def _fold_constants(written: fx.GraphModule) -> fx.GraphModule:
    """Compute the remaining operations that do not depend on the rows, and store their results as buffers."""
    known: set[fx.Node] = set()
    for node in written.graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (node.op == "call_function" and all(argument in known for argument in inputs)):
            known.add(node)
    for node in written.graph.nodes:  # a tensor that rows are written into is not constant, nor are its views
        if node not in known and getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            pending = list(node.all_input_nodes)
            while pending:
                other = pending.pop()
                if other in known and other.op != "get_attr":
                    known.discard(other)
                    pending += [*other.all_input_nodes, *other.users]
    values: dict[fx.Node, Any] = {}
    copies: dict[int, Tensor] = {}  # of tensors that several nodes use
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
                constant_node = written.graph.get_attr(name)
            node.replace_all_uses_with(constant_node, delete_user_cb=lambda user: user not in known)
    for node in reversed(written.graph.nodes):
        if node in known and not node.users:
            written.graph.erase_node(node)
    for used in {str(node.target) for node in known if node.op == "get_attr"}:
        delattr(written, used)
    written.recompile()
    return written
