"""Exponential moving averages of the weights of a training."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

__all__ = ["Averages"]


class Averages:
    r"""Exponential moving averages of tensors, by name.

    After step t = 1, 2, …,

    .. math:: \bar\theta \leftarrow \bar\theta + \max(\tfrac1t, \tfrac1\tau) (\theta - \bar\theta) ,

    so that the average is the mean of all steps at first, and later that of about the last τ.

    Parameters
    ----------
    length : float
        τ in steps, at least 1.

    References
    ----------
    B. Polyak and A. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control Optim. 1992.

    Examples
    --------
    >>> value = torch.tensor([0.0], device="cpu")
    >>> averages = Averages(length=10)
    >>> averages.follow({"value": value})
    >>> for number in (1.0, 2.0, 6.0):
    ...     _ = value.fill_(number)
    ...     averages.update()
    >>> averages.values["value"]
    tensor([3.])
    """

    def __init__(self, length: float) -> None:
        self.length = max(1.0, length)
        self.steps = 0
        self.values: dict[str, Tensor] = {}
        self._tensors: list[Tensor] = []

    def follow(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the tensors to average. Known names keep their average; a new one starts at the present value."""
        self.values = {name: self.values.get(name, value.detach().clone()) for name, value in tensors.items()}
        self._tensors = [value.detach() for value in tensors.values()]

    def restart(self) -> None:
        """Start again from the present values."""
        self.steps = 0
        for average, value in zip(self.values.values(), self._tensors, strict=True):
            average.copy_(value)

    @torch.no_grad()
    def update(self) -> None:
        """Include the values after a step."""
        self.steps += 1
        if self._tensors:
            share = max(1.0 / self.steps, 1.0 / self.length)
            torch._foreach_lerp_(list(self.values.values()), self._tensors, share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the tensors by their averages for a while."""
        before = [value.clone() for value in self._tensors]
        self.adopt()
        try:
            yield
        finally:
            for value, own in zip(self._tensors, before, strict=True):
                value.copy_(own)

    def adopt(self) -> None:
        """Replace the tensors by their averages."""
        for average, value in zip(self.values.values(), self._tensors, strict=True):
            value.copy_(average)
