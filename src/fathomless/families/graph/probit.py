"""Classes as signs of latent activations: one more Gibbs step, with the rest of a sweep as it is.

Two classes have one output, y = 1 if a > 0; more have one each, y = argmax_c a_c. Given everything else, each a is
normal with variance 1 around its mean, cut where the class would change.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from fathomless.families.graph.state import FIXED, UNITS, Floats, State, logistic

__all__ = ["latent_pass"]


def latent_pass(state: State, labels: NDArray[np.int64], generator: np.random.Generator) -> None:
    """Draw the activations of the outputs, which are the units of fixed precision, given the classes of the rows.

    Parameters
    ----------
    labels : (N,)
        0 or 1 for one output, else 0 ... outputs - 1.
    """
    outputs = np.flatnonzero(state.role[: state.size[UNITS]] == FIXED)
    a = state.a[outputs]
    means = a - state.e[outputs]
    if len(outputs) == 1:
        sign = np.where(labels == 1, 1.0, -1.0)
        a[0] = means[0] + sign * _tail(-sign * means[0], generator)
    else:
        rows = np.arange(len(labels))
        for place in range(len(outputs)):
            own = labels == place
            rivals = np.where(np.arange(len(outputs))[:, None] == place, -np.inf, a).max(0)
            bound = np.where(own, rivals, a[labels, rows])
            sign = np.where(own, 1.0, -1.0)
            a[place] = means[place] + sign * _tail(sign * (bound - means[place]), generator)
    state.a[outputs], state.e[outputs], state.u[outputs] = a, a - means, logistic(a)


def _tail(low: Floats, generator: np.random.Generator) -> Floats:
    """Draw standard normal variables above bounds, by inverting the logarithm of the tail: exact far out too."""
    return np.asarray(-ndtri_exp(log_ndtr(-low) + np.log1p(-generator.random(len(low)))))
