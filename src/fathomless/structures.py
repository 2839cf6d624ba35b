"""What a page shows of the posterior over structure, for every family."""

from functools import partial
from typing import cast

import torch

from fathomless import plots
from fathomless.errors import DataError
from fathomless.models.depth import UnboundedDepth
from fathomless.models.ensemble import Ensemble
from fathomless.models.sparse import SparseNetwork, inclusion_table
from fathomless.paths import active_paths
from fathomless.pieces import Figure, Group, Table, percent, picture
from fathomless.scikit import Estimator
from fathomless.sparse_estimators import SparseBayesClassifier, SparseBayesRegressor
from fathomless.targets import ClassLabels

__all__ = ["structure_of"]

_EDGES = 400  # weights that a picture of a network can show


def structure_of(estimator: Estimator) -> list[Group]:
    """Return pictures and tables of the posterior over structure of a fitted estimator, if there is one."""
    if isinstance(estimator, SparseBayesClassifier | SparseBayesRegressor):
        return _sparsity(estimator)
    return [_depths(estimator)] if len(estimator.structure_.names) > 1 else []


def _depths(estimator: Estimator) -> Group:
    """Return the picture and the table of the posterior over structure."""
    structure = estimator.structure_
    # members of an ensemble share their prior
    model = next((part for part in estimator.model_.modules() if isinstance(part, UnboundedDepth)), None)
    if model is None:
        rows = [(name, percent(p)) for name, p in zip(structure.names, structure.probabilities, strict=True)]
        return Group("", [], Table("Probability of each structure", (structure.kind, "Posterior"), rows))
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
    table = [(str(depth), percent(p), percent(prior[depth])) for depth, p in posterior.items()]
    return Group("", [figure], Table("Probability of each depth", ("Layers", "Posterior", "Prior"), table, text=0))


def _sparsity(estimator: SparseBayesClassifier | SparseBayesRegressor) -> list[Group]:
    """Return how many weights of each layer are included, which columns are used, and the paths between."""
    model = estimator.model_
    member = cast(SparseNetwork, model.members[0] if isinstance(model, Ensemble) else model)
    rows = [
        (
            row.layer,
            f"{row.weights:,}",
            f"{row.kept:,}",
            percent(row.density),
            percent(row.expected),
            percent(row.undecided),
        )
        for row in inclusion_table(member)
    ]
    head = ("Layer", "Weights", "Kept", "Density", "Mean", "Open")
    layers = Table("Weights kept, mean probability, and share with probabilities of 27 to 73 %", head, rows)
    if not rows:  # all weights are included by choice
        return []
    figure = picture(
        "inclusion",
        partial(plots.inclusion_probabilities, estimator.inclusion_probability_),
        says="Distribution of the inclusion probabilities of each layer: "
        + "; ".join(f"layer {row[0]}, {row[3]} above one half" for row in rows)
        + ".",
        caption="Inclusion probabilities of the weights. Those to the right of one half make the median model.",
    )
    try:
        relevance, chosen = estimator.feature_relevance(), set(estimator.selected_features_)
    except DataError:  # a network of the user's own, which is no chain of layers
        return [Group("", [figure], layers)]
    ordered = sorted(relevance, key=lambda name: -relevance[name])
    columns = Table(
        "Columns, by the probability that the network uses them",
        ("Column", "Kept", "Probability"),
        [(name, "yes" if name in chosen else "no", percent(relevance[name])) for name in ordered],
        text=2,
    )
    return [Group("", [figure, *_network(estimator, member)], layers), Group("", [], columns)]


def _network(estimator: Estimator, member: SparseNetwork) -> list[Figure]:
    """Draw the active paths, if they are few enough."""
    paths = active_paths(member.network)
    if not 0 < paths.counts[2] <= _EDGES or any(layer.active.ndim != 2 for layer in paths.layers):
        return []
    own = dict(member.sparse_layers())
    if set(own) != {layer.name for layer in paths.layers}:
        return []
    weights = [(own[layer.name].weight.mean.detach() * layer.active).cpu().numpy() for layer in paths.layers]
    target = estimator.target_
    outputs = target.labels if isinstance(target, ClassLabels) else [f"y{i + 1}" for i in range(len(target.mean))]
    skip = len(weights) > 1 and weights[1].shape[1] == len(weights[0]) + weights[0].shape[1]
    draw = partial(
        plots.active_network,
        weights,
        inputs=estimator.schema_.encoded_names,
        outputs=[str(label) for label in outputs]
        if len(weights[-1]) == len(outputs)
        else ["output"] * len(weights[-1]),
        skip=skip,
    )
    try:
        return [
            picture(
                "paths",
                draw,
                says=f"The median network: {paths.summary}.",
                caption="The median network: green weights are positive, red ones negative.",
                height=4.0,
            )
        ]
    except DataError:  # too many units to be read
        return []
