"""Continuous ranked probability score of mixtures."""

from fathomless.posterior import metrics
from fathomless.posterior.metrics import Floats, Values
from fathomless.posterior.mixtures import Laplace, Mixture, Normal, StudentT
from fathomless.posterior.pool import Pool
from fathomless.posterior.tabulated import tabulate

__all__ = ["crps_of_mixture"]

_PAIRED = 64  # components up to which the exact CRPS of a mixture, of quadratic cost, is faster than quadrature


def crps_of_mixture(law: Mixture | Pool, y: Values) -> Floats:
    """Return the continuous ranked probability score, (N, T): by a formula for few components, else by quadrature."""
    if isinstance(law, Pool):
        return metrics.crps_law(y, law)
    match law.component:
        case Normal(loc, scale) if len(loc) <= _PAIRED:
            return metrics.crps_normal_mixture(y, law.weight, loc, scale)
        case Laplace(loc, scale) if len(loc) <= _PAIRED:
            return metrics.crps_laplace_mixture(y, law.weight, loc, scale)
        case StudentT(loc, scale, df) if len(loc) == 1:
            return metrics.crps_student(y, loc[0], scale[0], df[0])
    return metrics.crps_law(y, tabulate(law))
