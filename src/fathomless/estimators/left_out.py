"""Leave-one-out laws of the training rows of a fit by Markov chains, for its recalibration."""

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.data.targets import TargetScale
from fathomless.estimators.preparation import Prepared
from fathomless.inference.mcmc.left_out import leave_one_out_laws
from fathomless.posterior.left_out import LeftOutLaws, mix_left_out
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.mixtures import Component
from fathomless.posterior.model import Draws, Model
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.torch_state import without_gradients

__all__ = ["count_left_out", "predict_left_out"]


def count_left_out(table: Prepared) -> tuple[NDArray[np.float64] | None, NDArray[np.int64] | None]:
    """Return how often each training row is left out, (N,), and the rows that are left out together, (N,).

    A row of weight c is left out c times. Merged equal rows that are separate observations are left out one by one.

    Parameters
    ----------
    table : Prepared
        Table of the fit.
    """
    rows = cast(Rows, table.train)
    counts = None if rows.weight is None else rows.weight.double().cpu().numpy()
    if counts is not None and table.apart:
        counts = np.minimum(counts, 1.0)
    return counts, None if table.group is None else table.group.numpy()


@without_gradients()
def predict_left_out(model: Model, likelihood: Likelihood, table: Prepared, draws: int = 1) -> LeftOutLaws:
    """Compute the law of each training row under the states of chains without this row.

    Parameters
    ----------
    model : Model
        Model of the states. Draws of one state follow each other. Listed structures have a posterior each, whose
        weights are those of the model; sampled ones are part of the states.
    likelihood : Likelihood
        p(y | f).
    table : Prepared
        Table of the fit.
    draws : int
        Number of draws of the hidden units of each state, if they are drawn.

    Returns
    -------
    LeftOutLaws
        Laws of the training rows, in their order.
    """
    rows = cast(Rows, table.train)
    y = rows.y[:, : len(cast(TargetScale, table.target).mean)]
    counts, unit = count_left_out(table)

    def draw(part: slice) -> Draws:
        x = rows.x[part].to(model.device, model.dtype)
        return model.draw(x, draws, as_generator(fold_in(table.seed, "left out")))

    def components(part: slice, chosen: Tensor) -> Component:
        return cast(Component, likelihood.components(draw(part).f[chosen]))

    first = draw(slice(0, 1))
    draws_each = draws if model.stochastic else 1
    structure = torch.zeros_like(first.structure) if first.sampled else first.structure
    chain = first.structure if first.network is None else first.network
    laws, masses = [], []
    for number in structure.unique():
        chosen = (structure == number) & (first.log_weight > -torch.inf)
        if not bool(chosen.any()):
            continue
        log_base = first.log_weight[chosen].double().reshape(-1, draws_each)[:, 0]
        laws.append(
            leave_one_out_laws(
                lambda part, chosen=chosen: components(part, chosen),  # type: ignore[misc]
                y,
                log_base,
                chain[chosen].reshape(-1, draws_each)[:, 0],
                draws=draws_each,
                counts=counts,
                unit=unit,
            )
        )
        masses.append(float(first.log_weight[chosen].double().exp().sum()))
    return mix_left_out(laws, [mass / sum(masses) for mass in masses])
