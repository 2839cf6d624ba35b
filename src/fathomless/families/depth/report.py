"""What a page shows of a posterior over depth, and what the doctor says of it."""

from functools import partial

import torch

from fathomless.estimators.base import Estimator
from fathomless.families.depth import plots
from fathomless.families.depth.model import UnboundedDepth
from fathomless.plots.page import Figure, Group, StructureSection, Table, number, percent, picture

__all__ = ["page"]


_NOTE = (
    "This posterior is an approximation by a parametric family. It follows the complexity of the data, but it need not "
    "find the best single depth, and it depends on how long and at what rate it is learned."
)


def page(estimator: Estimator) -> StructureSection:
    """Return the posterior over depth as a picture and a table, and its path in training, if it has several."""
    structure = estimator.structure_
    if len(structure.names) < 2:
        return StructureSection()
    # members of an ensemble share their prior
    model = next(part for part in estimator.model_.modules() if isinstance(part, UnboundedDepth))
    posterior = {int(name): p for name, p in zip(structure.names, structure.probabilities, strict=True)}
    offsets = torch.tensor([depth - model.min_depth for depth in posterior], dtype=torch.float64)
    prior = dict(zip(posterior, model.prior.log_prob(offsets).exp().tolist(), strict=True))
    bars = ", ".join(f"{depth}: {percent(p)}" for depth, p in posterior.items() if p >= 5e-3)
    figure = picture(
        "depth",
        partial(plots.depth_posterior, posterior, prior=prior),
        says=f"Bars: the posterior probability of each number of layers. {bars}. In short: {structure.summary}.",
        caption="Probability of each number of layers, before and after the data.",
    )
    rows = [(str(depth), percent(p), percent(prior[depth])) for depth, p in posterior.items()]
    table = Table("Probability of each depth", ("Layers", "Posterior", "Prior"), rows, text=0)
    return StructureSection([Group("", [figure], table)], [_path(estimator)], _NOTE)


def _path(estimator: Estimator) -> Figure:
    """Draw the path of the mean depth in training."""
    history = estimator.history_
    path = [row["mean_depth"] for row in history]
    return picture(
        "path",
        partial(plots.depth_path, history),
        says=f"Mean depth against the epoch. It goes from {number(path[0])} to {number(path[-1])} layers, never below "
        f"{number(min(path))} or above {number(max(path))}.",
        caption="If the mean still moves at the end, depth has not come to rest.",
    )
