r"""Leave-one-out laws of training rows from states of Markov chains.

States s are draws, with weights b_s, from the posterior of all rows. Given s, rows are independent. The posterior
without row i is therefore proportional to :math:`p(s \mid D) / p(y_i \mid s)^{c_i}`, where c_i is the sample weight of
the row, and its law without itself is the mixture

.. math:: p(y \mid x_i, D_{-i}) = \sum_s w_{is}\, p(y \mid x_i, s), \qquad
          w_{is} \propto b_s\, p(y_i \mid x_i, s)^{-c_i} .

The weights are smoothed (:mod:`fathomless.inference.mcmc.psis`). All targets of a row are left out together, and so are
the rows of a group and copies of a row: their densities are multiplied. If structures have weights of their own, such
as depths with stacking weights, the formula holds for the states of each structure, and the laws are averaged with the
weights of the structures. A single row has little influence on these.

If hidden units are drawn forward for each row, the density given s is an average over M draws,
:math:`p(y \mid s) = \frac{1}{M} \sum_m p(y \mid s, h_m)`. The weights belong to s. Weights of single draws,
:math:`1 / p(y_i \mid s, h_m)`, would be wrong, since h_m is drawn from its prior given s, and not from its posterior
given y_i. The average of the law of row i over them is 1 / M for each draw.

**Unreliable laws.** Where k̂ is above 0.7, the law depends too much on the row itself, and its residual
:math:`z = (y_i - m) / s` is too small. These rows have large residuals, so that the other rows alone would be worse: in
linear regressions with exact draws of the posterior (``benchmarks/results/left_out.txt``), the mean of z² is 0.98
instead of 1.01 if 17 % of the rows have such a k̂, and 0.78 without them. With outlying features it is 0.86 instead of
0.95 at 23 %, and 0.70 instead of 0.92 at 34 %. Laws with a large k̂ are therefore used like others, if their share is at
most a quarter. A scale that is 5 % too small, as for 0.86 instead of 0.95, costs about 0.0025 nats per row.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fathomless.inference.mcmc.diagnostics import LEAST, ess_bulk
from fathomless.inference.mcmc.psis import TRUSTED, leave_one_out_weights
from fathomless.posterior.left_out import LeftOutLaws
from fathomless.posterior.mixtures import Component, Mixture

__all__ = ["leave_one_out_laws"]

_AT_ONCE = 4_000_000  # rows times draws evaluated at once


def leave_one_out_laws(
    laws: Callable[[slice], Component],
    y: Tensor,
    log_base: Tensor,
    chain: Tensor,
    *,
    draws: int = 1,
    counts: NDArray[np.float64] | None = None,
    unit: NDArray[np.int64] | None = None,
) -> LeftOutLaws:
    """Compute the law of each row under the posterior of all other rows.

    Parameters
    ----------
    laws : callable
        Laws of some rows, given by a slice, under each state; parameters of shape (S M, n, T), with the M draws of a
        state one after the other.
    y : Tensor, shape (N, T)
        Targets of all rows.
    log_base : Tensor, shape (S,)
        Log weights b of the states, up to a constant.
    chain : Tensor of int64, shape (S,)
        Chain of each state; the states of a chain are in the order of sampling.
    draws : int
        Number M of draws of the hidden units of each state.
    counts : ndarray, shape (N,), optional
        Sample weights of the rows in the posterior, 1 by default.
    unit : ndarray of int, shape (N,), optional
        Rows of one unit are left out together. By default each row is a unit.

    Returns
    -------
    LeftOutLaws

    Raises
    ------
    DataError
        If a log density is not finite.
    """
    y = y.double().cpu()
    size = max(1, _AT_ONCE // (draws * len(log_base)))
    parts = [slice(start, start + size) for start in range(0, len(y), size)]
    tables = []
    for part in parts:
        joint = laws(part).log_prob(y[part]).sum(-1)  # (S M, n)
        tables.append(torch.logsumexp(joint.unflatten(0, (-1, draws)), 1))  # the constant log M cancels
    table = torch.cat(tables, 1).numpy()
    base = log_base.double().cpu().numpy()
    share = _efficiency(table.mean(1), chain.cpu().numpy())
    log_weight, shape = leave_one_out_weights(table, share, counts=counts, unit=unit, log_base=base)
    of_draw = torch.as_tensor(np.repeat(log_weight, draws, axis=0), device="cpu")[..., None]  # (S M, N, 1)
    moments = []
    for part in parts:
        component = laws(part)
        law = Mixture(of_draw[:, part].expand_as(component.loc), component)
        moments.append(torch.stack([law.mean, law.std, law.log_prob(y[part])]))
    mean, std, log_density = torch.cat(moments, 1)
    unreliable = torch.as_tensor(shape > TRUSTED, dtype=torch.float64, device="cpu")
    return LeftOutLaws(mean, std, log_density, unreliable)


def _efficiency(values: NDArray[np.float64], chain: NDArray[np.int64]) -> float:
    """Return the effective sample size of a quantity of the states, (S,), over their number, at most 1."""
    by_chain = [values[chain == number] for number in np.unique(chain)]
    length = min(map(len, by_chain))
    if length < LEAST:
        return 1.0
    series = np.stack([of_chain[-length:] for of_chain in by_chain])
    return min(1.0, float(ess_bulk(series)) / series.size)
