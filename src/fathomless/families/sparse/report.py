"""What a page shows of which weights are in the network."""

from functools import partial
from typing import cast

from fathomless.data.targets import ClassLabels
from fathomless.families.sparse import plots
from fathomless.families.sparse.estimator import SparseBayesClassifier, SparseBayesRegressor
from fathomless.families.sparse.model import SparseNetwork, inclusion_table
from fathomless.families.sparse.paths import active_paths
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, percent, picture
from fathomless.posterior.ensemble import Ensemble
from fathomless.system.errors import DataError

__all__ = ["page"]

_EDGES = 400  # weights that a picture of a network can show


def page(estimator: SparseBayesClassifier | SparseBayesRegressor) -> StructureSection:
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
    layers = TextTable("Weights kept, mean probability, and share with probabilities of 27 to 73 %", head, rows)
    used = "draw weights of that model" if estimator.predict_by == "median" else "average over structures"
    note = (
        "The median probability model keeps the weights whose inclusion probability is above one half; predictions "
        f"{used}. Which weights are included depends on the temperature, on the prior, and on how long inclusion is "
        "learned."
    )
    if not rows:  # all weights are included by choice
        return StructureSection(note=note)
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
        return StructureSection([Group("", [figure], layers)], note=note)
    ordered = sorted(relevance, key=lambda name: -relevance[name])
    columns = TextTable(
        "Columns, by the probability that the network uses them",
        ("Column", "Kept", "Probability"),
        [(name, "yes" if name in chosen else "no", percent(relevance[name])) for name in ordered],
        text=2,
    )
    groups = [Group("", [figure, *_network(estimator, member)], layers), Group("", [], columns)]
    return StructureSection(groups, note=note)


def _network(estimator: SparseBayesClassifier | SparseBayesRegressor, member: SparseNetwork) -> list[Figure]:
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
