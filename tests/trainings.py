"""Trainings whose state a test looks at, not their result alone."""

from collections.abc import Callable, Sequence
from typing import Any


def state_of(train: Callable[..., Any], *arguments: Any, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    """Train with `fit` or `fit_batched`; return the state that the callbacks were given, as it was left."""
    seen: list[Any] = []
    train(*arguments, callbacks=[*callbacks, seen.append], **options)
    return seen[-1]
