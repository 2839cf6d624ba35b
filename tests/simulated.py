"""Simulated accelerator "sim": its tensors contain CPU data, and raise errors if mixed with CPU tensors.

It is written for torch's device of Python, as CUDA behaves: operations need all tensors on one device, but for tensors
without axes and for indices of the processor into tensors of the device; generators draw on their own device alone;
nothing is read by NumPy. Not seen is a generator of the device in an operation of the processor.

Registering it changes torch in the whole process, and takes the place of ``torch.Generator``: it is for a process of
its own.
"""

import weakref
from functools import partial
from typing import Any

import torch
import torch.utils.backend_registration as registration
from torch.utils._pytree import tree_map

registration._setup_privateuseone_for_python_backend("sim")

DEVICE = torch.device("sim", 0)
#: Move or fill tensors of one device by those of another.
_MOVES = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_TORCH_GENERATOR: Any = torch.Generator
_OWN: dict[int, Any] = {}  # generators of the device, by their addresses


class Simulated(torch.Tensor):
    """Tensor of the device."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Simulated":
        own: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        own.inner = inner
        return own

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: "Simulated") -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.inner = value.inner

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def numpy(self, *args: Any, **options: Any) -> Any:
        raise TypeError("can't convert sim:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")

    def __array__(self, *args: Any, **options: Any) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Simulated":
        if id(self) not in memo:
            other = Simulated(self.inner.detach().clone()).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                other._is_param = True  # type: ignore[attr-defined]
            memo[id(self)] = other
        return memo[id(self)]  # type: ignore[no-any-return]

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    def __repr__(self, *args: Any, **options: Any) -> str:
        return f"{self.detach().cpu()} on sim:0"


class _Kind(type):
    """Answer ``isinstance(x, torch.Generator)``."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, _TORCH_GENERATOR)


class _OfDevice(_TORCH_GENERATOR):  # type: ignore[misc]
    """Generator of the device: a CPU generator that reports the device."""

    @property
    def device(self) -> torch.device:
        return DEVICE


class Generator(metaclass=_Kind):
    """Replacement of ``torch.Generator``."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != "sim":
            return _TORCH_GENERATOR(device=device)
        own = _OfDevice(device="cpu")
        _OWN[own._cdata] = weakref.ref(own)
        weakref.finalize(own, _OWN.pop, own._cdata, None)
        return own


class _Operation:
    """Cached properties of an operation, which every call needs."""

    def __init__(self, func: Any) -> None:
        self.name, self.text, schema = func.overloadpacket.__name__, str(func), func._schema
        self.moves, self.indexes = self.name in _MOVES, self.name in _INDEXING
        self.names = [argument.name for argument in schema.arguments]
        writes = [one.alias_info is not None and one.alias_info.is_write for one in schema.returns]
        self.written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        self.writes = bool(writes) and all(writes)


_OPERATIONS: dict[Any, _Operation] = {}


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on the data, after the checks of CUDA."""
    op = _OPERATIONS.get(func) or _OPERATIONS.setdefault(func, _Operation(func))
    given, own, others = kwargs.get("device"), 0, []
    plain: list[Any] = []
    for value in (*args, *kwargs.values()):
        kind = type(value)
        if kind is list or kind is tuple:
            inside = [_inner(one) for one in value]
            for one, bare in zip(value, inside, strict=True):
                if isinstance(one, torch.Tensor):
                    own, others = (own + 1, others) if bare is not one else (own, [*others, one])
            plain.append(inside if kind is list else tuple(inside))
        elif isinstance(value, Simulated):
            own += 1
            plain.append(value.inner)
        else:
            if isinstance(value, torch.Tensor):
                others.append(value)
            plain.append(value)
    here = own > 0 if given is None else torch.device(given).type == "sim"
    if own and others and not op.moves:
        _refuse_mixed(op, args[0], others)
    options = dict(zip(kwargs, plain[len(args) :], strict=True))
    if options:
        _refuse_generator(options.get("generator"), here)
        options.pop("pin_memory", None)
        if given is not None:
            options["device"] = torch.device("cpu")
    found = func(*plain[: len(args)], **options)
    if op.name == "_to_copy" and here != bool(own) and found.data_ptr() == plain[0].data_ptr():
        found = found.clone()  # another device has memory of its own
    if op.writes:
        values = {**kwargs, **dict(zip(op.names, args, strict=False))}
        written = [values[name] for name in op.written if name in values]
        for one in written:
            if isinstance(one, Simulated) and one.inner.shape != one.shape:  # squeeze_, t_ and the like
                with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)):
                    one.as_strided_(one.inner.shape, one.inner.stride(), one.inner.storage_offset())
        return written[0] if len(written) == 1 else tuple(written)
    if not here:
        return found
    if isinstance(found, torch.Tensor):
        return Simulated(found)
    return tree_map(lambda t: Simulated(t) if isinstance(t, torch.Tensor) else t, found)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Simulated) else value


def _refuse_mixed(op: _Operation, first: Any, others: list[torch.Tensor]) -> None:
    if op.indexes:
        if isinstance(first, Simulated):
            return
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if any(t.dim() > 0 for t in others):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, sim:0 and cpu! ({op.text})"
        )


def _refuse_generator(generator: Any, here: bool) -> None:
    if generator is not None and (generator._cdata in _OWN) != here:
        wanted, found = ("sim", "cpu") if here else ("cpu", "sim")
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    _inner(target).copy_(_inner(source))
    return target


def _run_as(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(func, args, kwargs)


class _Module:
    """Properties of the device for ``torch.autocast``."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]


_ANY = torch.library.Library("_", "IMPL")
_ANY.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
_ATEN = torch.library.Library("aten", "IMPL")
_ATEN.impl("_copy_from", _copy_from, "PrivateUse1")  # where torch moves data behind Python's back
for _name in ("arange", "range", "linspace", "logspace", "eye", "randperm"):  # else made in memory that grows
    for _overload in getattr(torch.ops.aten, _name).overloads():
        if "out" not in _overload:
            _func = getattr(getattr(torch.ops.aten, _name), _overload)
            _ATEN.impl(
                _func._schema.name + f".{_overload}".removesuffix(".default"), partial(_run_as, _func), "PrivateUse1"
            )
_CAST = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
_CAST.fallback(torch.library.fallthrough_kernel)
torch.sim.get_amp_supported_dtype = _Module.get_amp_supported_dtype  # type: ignore[attr-defined]
torch.Generator = Generator  # type: ignore[misc, assignment]
