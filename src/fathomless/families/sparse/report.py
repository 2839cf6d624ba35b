"""Page section of sparse networks."""

from collections.abc import Collection, Mapping
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

_EDGES = 400  # most weights in a readable picture of a network


def page(estimator: SparseBayesClassifier | SparseBayesRegressor) -> StructureSection:
    """Return the section: included weights of each layer, columns used, active paths, and the temperature."""
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
    head = ("Layer", "Weights", "Kept", "Density", "Mean probability", "Undecided")
    caption = "Weights of the median probability model by layer; undecided weights have probabilities of 27 to 73 %"
    layers = TextTable(caption, head, rows)
    used = "draw weights of this model" if estimator.predict_by == "median" else "average over structures"
    note = (
        "The median probability model keeps the weights with an inclusion probability above one half; predictions "
        f"{used}. Inclusion depends on the temperature, on the prior, and on the length of the training."
    )
    temperature = [Group("Temperature", [], _tabulate_temperatures(estimator))] if estimator.candidates_ else []
    if not rows:  # posteriors without inclusion variables
        return StructureSection(temperature, note=note)
    figure = picture(
        "inclusion",
        partial(plots.inclusion_probabilities, estimator.inclusion_probability_),
        says="Distribution of the inclusion probabilities of each layer: "
        + "; ".join(f"layer {row[0]}, {row[3]} above one half" for row in rows)
        + ".",
        caption="Inclusion probabilities of the weights. Those above one half form the median probability model.",
    )
    try:
        relevance = estimator.feature_relevance()
        selected = set(estimator.selected_features_)
    except DataError:  # a user-defined network that is not a chain of layers
        return StructureSection([Group("", [figure], layers), *temperature], note=note)
    columns = _tabulate_columns(estimator, relevance, selected)
    groups = [Group("", [figure, *_draw_network(estimator, member)], layers), Group("", [], columns), *temperature]
    return StructureSection(groups, note=note)


def _tabulate_columns(
    estimator: SparseBayesClassifier | SparseBayesRegressor, relevance: Mapping[str, float], selected: Collection[str]
) -> TextTable:
    """Tabulate the probability that the network uses each column, and of the layers that it enters with skips."""
    caption = "Posterior probability that the network uses each column; kept columns are those of the median model"
    head: tuple[str, ...] = ("Column", "Kept", "Probability")
    layers: dict[str, tuple[str, ...]] = {}
    if estimator.architecture == "skip" and estimator.depth:
        caption += (
            ". Further, the probability that it enters each layer; a column that only enters the last layer has a "
            "linear effect"
        )
        head = (*head, *(f"Layer {i + 1}" for i in range(estimator.depth + 1)))
        layers = {name: tuple(map(percent, values)) for name, values in estimator.feature_entries().items()}
    rows = [
        (name, "yes" if name in selected else "no", percent(relevance[name]), *layers.get(name, ()))
        for name in sorted(relevance, key=lambda name: -relevance[name])
    ]
    return TextTable(caption, head, rows, text=2)


def _tabulate_temperatures(estimator: SparseBayesClassifier | SparseBayesRegressor) -> TextTable:
    """Tabulate the held-out log-likelihood of every candidate temperature."""
    rows = []
    for record in estimator.candidates_:
        tried = Candidate(**record)
        cells = ["failed", "", "", ""]
        if tried.log_density is not None and tried.behind is not None:
            cells = [
                f"{number(tried.log_density)} ± {number(tried.error or 0.0, 2)}",
                f"{number(tried.behind)} ± {number(tried.behind_error or 0.0, 2)}" if tried.behind else "best",
                "all" if tried.kept is None else percent(tried.kept),
                "yes" if tried.temperature == estimator.temperature_ else "no",
            ]
        rows.append((f"{tried.temperature:g}", *cells))
    head = ("Temperature", "Held-out log-likelihood", "Difference from the best", "Weights kept", "Chosen")
    return TextTable(
        "Log-likelihood on held-out rows by temperature, in nats per row. The chosen temperature is the highest one "
        "within one standard error of the best.",
        head,
        rows,
    )


def _draw_network(estimator: SparseBayesClassifier | SparseBayesRegressor, member: SparseNetwork) -> list[Figure]:
    """Draw the active paths, if there are few enough to read."""
    paths = active_paths(member.network)
    if not 0 < paths.counts[2] <= _EDGES or any(layer.active.ndim != 2 for layer in paths.layers):
        return []
    sparse = dict(member.sparse_layers())
    if set(sparse) != {layer.name for layer in paths.layers}:
        return []
    weights = [(sparse[layer.name].weight.mean.detach() * layer.active).cpu().numpy() for layer in paths.layers]
    target = estimator.target_
    assert not isinstance(target, Indicators)  # command-line runs have no such targets
    outputs = target.labels if isinstance(target, ClassLabels) else [f"y{i + 1}" for i in range(len(target.mean))]
    # with InputSkip the second layer reads the units of the first and the inputs
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
                says=f"The median probability model: {paths.summary}.",
                caption="Active paths of the median probability model. Positive weights are green, negative ones red.",
                height=4.0,
            )
        ]
    except DataError:  # too many units to draw
        return []
