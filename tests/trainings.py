"""Trainings with access to their state."""

from collections.abc import Callable, Sequence
from typing import Any


def state_of(train: Callable[..., Any], *arguments: Any, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    """Train with `fit` or `fit_batched`; return the final state passed to the callbacks."""
    seen: list[Any] = []
    train(*arguments, callbacks=[*callbacks, seen.append], **options)
    return seen[-1]
