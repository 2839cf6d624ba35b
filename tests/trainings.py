"""Trainings with access to their state, and their reads of the device."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = ("_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2")


class Syncs(TorchDispatchMode):
    """Count the operations that read a tensor's values back to the host, and those whose names are given."""

    def __init__(self, *more: str) -> None:
        super().__init__()
        self.counted = {*SYNCS, *more}
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.counted:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def state_of(train: Callable[..., Any], *arguments: Any, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    """Train with `fit` or `fit_batched`; return the final state passed to the callbacks."""
    seen: list[Any] = []
    train(*arguments, callbacks=[*callbacks, seen.append], **options)
    return seen[-1]
