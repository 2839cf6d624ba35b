"""Scale of the noise of a continuous target, and its split from the outputs of a network."""

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fathomless.system.errors import DataError

__all__ = ["FixedNoise", "InputNoise", "LearnedNoise", "Noise", "NoiseOption", "StatedNoise", "make_noise"]

_LOG_LARGEST = math.log(10.0)  # log of the largest predicted scale, in standard deviations of the target

#: Option `noise` of a likelihood.
NoiseOption = float | Literal["learned", "input", "stated"]


class Noise(nn.Module, ABC):
    """Rule that splits the outputs of a network into the centre and the log scale of each target column."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """Number of network outputs for each target column."""

    @abstractmethod
    def split(self, f: Tensor) -> tuple[Tensor, ...]:
        """Return the centre (S, B, T), a log scale that broadcasts to it, and shape parameters if f has them.

        f has the shape (S, B, T * columns).
        """


class FixedNoise(Noise):
    """A known scale.

    Parameters
    ----------
    scale : float
        Scale in the units of the standardised target.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    @property
    def columns(self) -> int:
        """1, the centre."""
        return 1

    def split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return f itself and the known log scale."""
        return f, f.new_full((), math.log(self.scale))


class LearnedNoise(Noise):
    r"""One scale for each target column, trained by gradients.

    The parameter :math:`\rho` is the log scale, up to a floor m on the scale:
    :math:`\sigma^2 = m^2 + e^{2 \rho}`, so :math:`\partial \log \sigma / \partial \rho = 1 - m^2 / \sigma^2`,
    which is 1 to six digits at a thousand times the floor.

    Parameters
    ----------
    targets : int
        Number of target columns T.
    initial : float
        Initial scale.
    minimum : float
        The floor m.
    """

    def __init__(self, targets: int, initial: float, minimum: float) -> None:
        super().__init__()
        self.log_minimum = math.log(minimum)
        start = 0.5 * math.log(initial**2 - minimum**2)
        self.raw = nn.Parameter(torch.full((targets,), start, dtype=torch.float32))

    @property
    def columns(self) -> int:
        """1, the centre."""
        return 1

    def log_scale(self) -> Tensor:
        """Log of the scale of each target column, shape (T,)."""
        return self.log_minimum + 0.5 * F.softplus(2.0 * (self.raw - self.log_minimum))

    @torch.no_grad()
    def raise_to(self, least: Tensor) -> None:
        """Raise scales below the given ones (T,) to them; other scales keep their bits."""
        factor = least.to(self.raw) / self.log_scale().exp()
        if bool((factor > 1.0).any()):
            before = self.raw.clone()
            self.rescale(factor.clamp(min=1.0))
            self.raw.copy_(torch.where(factor > 1.0, self.raw, before))

    @torch.no_grad()
    def rescale(self, factor: Tensor) -> None:
        """Multiply the scale of each target column by a factor (T,), but not below the floor."""
        above = (2.0 * (self.log_scale() + factor.to(self.raw).log() - self.log_minimum)).clamp(min=1e-6)
        self.raw.copy_(self.log_minimum + 0.5 * (above + (-torch.expm1(-above)).log()))

    def split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return f itself and the learned log scales."""
        return f, self.log_scale().to(f.dtype)


class InputNoise(Noise):
    r"""A scale that the network predicts for each input: f = [centres | raw log scales].

    With raw output r and floor m,

    .. math:: \log \sigma = \log m + \tfrac12 \left(x + \sqrt{x^2 + 4}\right), \qquad x = r + c.

    This is smooth, above :math:`\log m` and close to r above it; c makes the scale ``initial`` where r = 0.
    For small r the gradient decreases as :math:`1 / x^2`, not exponentially as with a softplus. A scale that became
    too small in training can therefore grow again. Scales are at most ten standard deviations of the target, since an
    exponential of an extrapolated output has no meaning. A larger one keeps its gradient.

    A network that fits its training rows closely predicts too small a scale for other rows. Held-out rows can
    therefore fit a factor of the scale for each target (:meth:`add_factor`), which also multiplies the floor.

    Parameters
    ----------
    targets : int
        Number of target columns T.
    initial : float
        Scale where the raw output is 0.
    minimum : float
        The floor m.

    Attributes
    ----------
    log_factor : Parameter, shape (T,), or None
        Log of the factor of the scale of each target; None if there is no factor, as in training.
    """

    log_factor: nn.Parameter | None

    def __init__(self, targets: int, initial: float, minimum: float) -> None:
        super().__init__()
        self.targets = targets
        self.log_factor = None
        self.log_minimum = math.log(minimum)
        height = math.log(initial) - self.log_minimum
        self.offset = height - 1.0 / height

    @property
    def columns(self) -> int:
        """2, the centre and the raw log scale."""
        return 2

    def add_factor(self, like: Tensor | None = None) -> None:
        """Add a factor of 1 of the scale of each target as a parameter, unless there is one.

        Parameters
        ----------
        like : Tensor, optional
            Tensor whose device and floating-point type the parameter has; on the CPU in single precision by default.
        """
        if self.log_factor is None:
            zeros = torch.zeros(self.targets, dtype=torch.float32, device="cpu")
            self.log_factor = nn.Parameter(zeros if like is None else zeros.to(like))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a state, with a factor if the saved noise has one."""
        if (saved := state_dict.get(f"{prefix}log_factor")) is not None:
            self.add_factor(saved)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @torch.no_grad()
    def rescale(self, factor: Tensor) -> None:
        """Multiply the scale of each target column by a factor (T,)."""
        self.add_factor(factor)
        assert self.log_factor is not None
        self.log_factor.add_(factor.to(self.log_factor).log())

    def split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Split f (S, B, 2 T) into centres and log scales, each (S, B, T)."""
        loc, raw = f[..., : self.targets], f[..., self.targets :]  # (S, B, T) each
        x = raw + self.offset
        log_scale = self.log_minimum + 0.5 * (x + torch.sqrt(x.square() + 4.0))
        excess = (log_scale - _LOG_LARGEST).clamp(min=0.0)
        log_scale = log_scale - excess.detach()  # the gradient remains
        return loc, log_scale if self.log_factor is None else log_scale + self.log_factor.to(f)


class StatedNoise(Noise):
    """A scale that is part of the outputs of each drawn network: f = [centres | log scales | shape parameters].

    It is for posteriors over networks and their noise. The outputs are not transformed.

    Parameters
    ----------
    targets : int
        Number of target columns T.
    shapes : int
        Number of shape parameters of the law for each target.
    """

    def __init__(self, targets: int, shapes: int = 0) -> None:
        super().__init__()
        self.targets = targets
        self.shapes = shapes

    @property
    def columns(self) -> int:
        """Number of outputs for each target: the centre, the log scale, and the shape parameters."""
        return 2 + self.shapes

    def split(self, f: Tensor) -> tuple[Tensor, ...]:
        """Split f (S, B, T * columns) into centres, log scales and shape parameters, each (S, B, T)."""
        parts: tuple[Tensor, ...] = f.split(self.targets, -1)
        return parts


def make_noise(targets: int, noise: NoiseOption, initial: float, minimum: float) -> Noise:
    """Return the noise of an option.

    Parameters
    ----------
    targets : int
        Number of target columns T.
    noise : {"learned", "input", "stated"} or float
        One scale for each target, a scale that the network predicts, a scale that each drawn network has, or a number
        for a known scale, in units of the standardised target.
    initial, minimum : float
        Initial scale and floor of the first two, in the same units.

    Raises
    ------
    DataError
        If a number is not positive and finite, the initial scale is not above the floor, or the name is unknown.
    """
    if not 0.0 < minimum < initial < math.inf:
        raise DataError(
            f"initial_noise was given as {initial} and min_noise as {minimum}; allowed are positive "
            "finite numbers, the first above the second"
        )
    if noise == "learned":
        return LearnedNoise(targets, initial, minimum)
    if noise == "input":
        return InputNoise(targets, initial, minimum)
    if noise == "stated":
        return StatedNoise(targets)
    if isinstance(noise, str | bool) or not 0.0 < noise < math.inf:
        raise DataError(
            f"noise was given as {noise!r}; allowed are 'learned', 'input', 'stated' and positive finite "
            "numbers in the units of the standardised target"
        )
    return FixedNoise(float(noise))
