r"""A transform of a numeric target: a logarithm above a threshold that continues as a line below it.

.. math:: T(y) = \pm t\!\left(\pm \frac{y - a}{b}\right), \qquad
          t(u) = \begin{cases} \log(1 + u) & u \ge 0 \\ u & u < 0 \end{cases}

The threshold is a, the unit b, and the sign is plus for targets with a long tail of large values, and minus for a long
tail of small ones. T is increasing, has a continuous derivative, and maps the whole line to the whole line: no value
has density zero under a law that was fitted to transformed targets, as it would with the logarithm itself.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LogTransform"]

_LARGEST = 300.0  # logarithm of a distance in units


@dataclass(frozen=True)
class LogTransform:
    """The transform T of targets in their units to numbers without a unit.

    Attributes
    ----------
    threshold : float
        Value a at which the logarithm begins, in units of the target.
    unit : float
        Distance b from the threshold at which the slope is half of that at the threshold; positive.
    sign : float
        1 for a logarithm above the threshold, -1 for one below it.
    limit : float
        Largest distance from the threshold in units that counts in moments, if the networks do not agree on larger
        ones; see :func:`~fathomless.posterior.transformed.limit_rows`.

    Examples
    --------
    >>> log = LogTransform(threshold=1.0, unit=2.0)
    >>> y = torch.tensor([-1.0, 1.0, 5.0], device="cpu")
    >>> log.transform(y)
    tensor([-1.0000,  0.0000,  1.0986])
    >>> log.invert(log.transform(y))
    tensor([-1.,  1.,  5.])
    """

    threshold: float
    unit: float
    sign: float = 1.0
    limit: float = 1e9

    def transform(self, y: Tensor) -> Tensor:
        """Return T(y); the shape is kept."""
        u = self._distance(y)
        return self.sign * torch.where(u < 0.0, u, _clip(u).log1p())

    def invert(self, t: Tensor) -> Tensor:
        """Return the target y with T(y) = t; values of t beyond 300 count as 300, so that squares of y are finite."""
        return self._invert(torch.where(self.sign * t > _LARGEST, _LARGEST, self.sign * t))

    def invert_limited(self, t: Tensor, highest: float | Tensor) -> Tensor:
        """Return the target y with T(y) = t, or at log(1 + distance) = `highest` if it is farther away."""
        v = self.sign * t
        return self._invert(torch.where(v > highest, highest, v))

    def _invert(self, v: Tensor) -> Tensor:
        u = torch.where(v < 0.0, v, _clip(v).expm1())
        return self.threshold + self.sign * self.unit * u

    def log_slope(self, y: Tensor) -> Tensor:
        """Return the log of the derivative of T at y, the Jacobian of densities."""
        return -_clip(self._distance(y)).log1p() - math.log(self.unit)

    def _distance(self, y: Tensor) -> Tensor:
        """Return the distance from the threshold in units, positive where T is a logarithm."""
        return self.sign * (y - self.threshold) / self.unit


def _clip(u: Tensor) -> Tensor:
    """Replace negative values by 0, so that a branch that is not used has finite derivatives."""
    return torch.where(u < 0.0, 0.0, u)  # exported modules cannot combine several calls of clamp
