"""What a page shows of which weights are in the network."""

from functools import partial
from typing import cast

from fathomless.data.targets import ClassLabels, Indicators
from fathomless.families.sparse import plots
from fathomless.families.sparse.estimator import SparseBayesClassifier, SparseBayesRegressor
from fathomless.families.sparse.model import SparseNetwork, inclusion_table
from fathomless.families.sparse.paths import active_paths
from fathomless.families.sparse.temperature import Candidate
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, number, percent, picture
from fathomless.posterior.ensemble import list_members
from fathomless.system.errors import DataError

__all__ = ["page"]

_EDGES = 400  # weights that a picture of a network can show


def page(estimator: SparseBayesClassifier | SparseBayesRegressor) -> StructureSection:
    """Return how many weights of each layer are included, which columns are used, and the paths between."""
    model = estimator.model_
    member = cast(SparseNetwork, list_members(model)[0])
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
    chosen_by = [Group("Temperature", [], _candidates(estimator))] if estimator.candidates_ else []
    if not rows:  # all weights are included by choice
        return StructureSection(chosen_by, note=note)
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
        return StructureSection([Group("", [figure], layers), *chosen_by], note=note)
    ordered = sorted(relevance, key=lambda name: -relevance[name])
    columns = TextTable(
        "Columns, by the probability that the network uses them",
        ("Column", "Kept", "Probability"),
        [(name, "yes" if name in chosen else "no", percent(relevance[name])) for name in ordered],
        text=2,
    )
    groups = [Group("", [figure, *_network(estimator, member)], layers), Group("", [], columns), *chosen_by]
    return StructureSection(groups, note=note)


def _candidates(estimator: SparseBayesClassifier | SparseBayesRegressor) -> TextTable:
    """Return what rows that were held out say about every temperature that was tried."""
    rows = []
    for given in estimator.candidates_:
        tried = Candidate(**given)
        shown = ["failed", "", "", ""]
        if tried.log_density is not None and tried.behind is not None:
            shown = [
                f"{number(tried.log_density)} ± {number(tried.error or 0.0, 2)}",
                f"{number(tried.behind)} ± {number(tried.behind_error or 0.0, 2)}" if tried.behind else "best",
                "all" if tried.kept is None else percent(tried.kept),
                "yes" if tried.temperature == estimator.temperature_ else "no",
            ]
        rows.append((f"{tried.temperature:g}", *shown))
    head = ("Temperature", "Log density of unseen rows", "Behind the best", "Weights kept", "Chosen")
    return TextTable(
        "Networks of several temperatures by rows that they were not fitted to, in nats per row. Taken is the highest "
        "temperature that is behind the best one by no more than one standard error.",
        head,
        rows,
    )


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
    assert not isinstance(target, Indicators)  # runs have no such targets
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
