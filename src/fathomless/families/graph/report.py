"""Page section and findings of posteriors over graphs."""

import math
from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np

from fathomless.data.targets import ClassLabels
from fathomless.estimators.findings import Finding, FitSummary
from fathomless.estimators.markov_chains import convergence_warnings
from fathomless.families.graph import plots
from fathomless.families.graph.estimator import IndianChefsClassifier, IndianChefsDensity, IndianChefsRegressor
from fathomless.families.graph.model import graph_of
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, join_words, number, percent, picture
from fathomless.plots.traces import traces
from fathomless.posterior.fit_diagnostics import ChainDiagnostics

__all__ = ["findings", "page"]

Estimator = IndianChefsClassifier | IndianChefsRegressor | IndianChefsDensity

_SELECTED = {
    "selected": "those whose log-likelihood on training rows is close to the best",
    "all": "with equal weights",
    "stacked": "with stacking weights from held-out rows",
}
_BOUND = 17.9  # just inside |log α| = 18, where the slice sampler of α is bounded


def page(estimator: Estimator) -> StructureSection:
    """Return the section: graph size, columns, one sampled network, chains and their convergence."""
    structure = estimator.structure_
    figures = [
        picture(
            f"count-{place}",
            partial(plots.counts, probabilities, quantity),
            says=f"Posterior of the {quantity}: "
            + ", ".join(f"{value} with {percent(p)}" for value, p in probabilities.items())
            + ".",
            caption="Posterior of the number of hidden units."
            if quantity == "hidden units"
            else "Posterior of the depth, the number of edges of the longest path.",
        )
        for place, (quantity, probabilities) in enumerate(structure.counts.items())
        if quantity != "edges"
    ]
    groups = [
        Group("Graph size", figures),
        _tabulate_columns(estimator),
        Group("Sampled network", _draw_network(estimator)),
    ]
    groups += [
        Group("Chains", [], _tabulate_chains(estimator)),
        Group("Convergence", [], _tabulate_convergence(estimator)),
    ]
    used = sum(chain.get("weight", 0.0) > 0.0 for chain in estimator.chains_)
    return StructureSection(
        [group for group in groups if group.figures or group.table],
        _draw_traces(estimator),
        about=f"Predictions average the sampled networks of {used} of {len(estimator.chains_)} chains: "
        f"{_SELECTED[estimator.chains_by]}.",
        note="Hidden units are unlabelled, so only label-free summaries are shown. The network shown is one sample, "
        "not the posterior. Chains rarely switch between modes: all results are conditional on the modes found.",
        objective="No objective was maximised. Each sweep of a chain samples graph, weights, noise and hidden "
        "activations jointly, given all rows.",
    )


def _tabulate_columns(estimator: Estimator) -> Group:
    """Tabulate the use of each column; for a density, draw the dependence between columns."""
    if isinstance(estimator, IndianChefsDensity):
        names = [column.name for column in estimator.schema_.columns]
        table = estimator.dependence()
        pairs = [(table[i, j], names[i], names[j]) for i in range(len(names)) for j in range(i)]
        strongest = ", ".join(f"{b} and {a} {percent(p)}" for p, a, b in sorted(pairs, reverse=True)[:5])
        figure = picture(
            "dependence",
            partial(plots.dependence, table, names),
            says=f"Probability that two columns have a common ancestor among the hidden units: {strongest}.",
            caption="Posterior probability that two columns share a hidden ancestor. Columns without a common ancestor "
            "are independent.",
        )
        return Group("Columns", [figure] if len(names) > 1 else [])
    relevance = estimator.relevance()
    rows = [
        (name, percent(use["used"]), percent(use["direct"]), number(use["children"], 2))
        for name, use in sorted(relevance.items(), key=lambda item: -item[1]["used"])
    ]
    head = ("Column", "Path to a target", "Edge to a target", "Mean children")
    caption = "Posterior probability that a path, or an edge, leads from a column to a target"
    return Group("Columns", [], TextTable(caption, head, rows))


def _draw_network(estimator: Estimator) -> list[Figure]:
    """Draw the network whose numbers of units and edges are closest to the medians, if it is small enough to read."""
    model = estimator.model_
    used = (model.log_weight > -math.inf).nonzero()[:, 0].tolist()
    states = model.states()
    graphs = {place: graph_of(states[place], model.observed) for place in used}
    sizes = np.array([[graph.hidden, graph.links] for graph in graphs.values()], dtype=float)
    distance = np.abs((sizes - np.median(sizes, 0)) / np.maximum(sizes.std(0), 1.0)).sum(1)
    place = used[int(np.argmin(distance))]
    network = graphs[place]
    state = states[place]
    if len(network.orders) > plots.MOST_UNITS or network.links > plots.MOST_LINKS:
        return []
    names = list(estimator.schema_.encoded_names)
    if not isinstance(estimator, IndianChefsDensity):
        labels = estimator.target_.labels if isinstance(estimator.target_, ClassLabels) else ()
        outputs = model.observed - model.inputs
        names += [str(label) for label in labels[-outputs:]] if labels else [f"y{t + 1}" for t in range(outputs)]
    weights = np.zeros((len(network.orders),) * 2)
    weights[state["parents"], state["children"]] = state["weights"]
    strength = weights * np.sqrt(state["precisions"])
    return [
        picture(
            "network",
            partial(plots.graph, network, strength, names, inputs=model.inputs),
            says=f"A network of {network.hidden} hidden units and {network.links} edges, {network.depth} edges deep.",
            caption="One sampled network of typical size; squares are observed units. Edge width is the effect on the "
            "child in standard deviations; dashed edges have negative weights.",
            height=4.2,
        )
    ]


def _draw_traces(estimator: Estimator) -> list[Figure]:
    recorded = estimator.fit_diagnostics_.traces
    used = [chain.get("weight", 0.0) > 0.0 for chain in estimator.chains_]
    quantities = {"hidden": "hidden units", "log_likelihood": "log-likelihood per row"}
    return [
        picture(
            f"trace-{name}",
            partial(traces, recorded[name], recorded["sweeps"], recorded["burn_in"], used, quantity),
            says=f"The {quantity} of {len(used)} chains over {recorded['sweeps']:,} sweeps; at the end "
            + join_words([number(values[-1]) for values in recorded[name] if values], 12)
            + ".",
            caption=f"Trace of the {quantity} in each chain, given the current hidden activations. The line marks the "
            "end of the burn-in.",
        )
        for name, quantity in quantities.items()
        if name in recorded
    ]


def _tabulate_chains(estimator: Estimator) -> TextTable:
    rows = [
        (
            str(chain["chain"] + 1),
            number(chain["log_likelihood"], 4) if "log_likelihood" in chain else "–",
            percent(chain.get("weight", 0.0)),
            f"{chain['states']:,}",
            chain["error"] or "completed",
        )
        for chain in estimator.chains_
    ]
    return TextTable(
        "Log-likelihood of training rows by chain, hidden activations integrated out",
        ("Chain", "Nats per row", "Weight", "States", "Status"),
        rows,
    )


def _tabulate_convergence(estimator: Estimator) -> TextTable | None:
    of_all = estimator.diagnostics_of_all_

    def format_rhat(rhat: float | None) -> str:
        return "constant" if rhat is None else number(rhat, 3)

    rows = [
        (
            name.replace("_", " "),
            f"{number(diagnosis.mean)} ± {number(diagnosis.mcse, 2)}",
            format_rhat(diagnosis.rhat),
            format_rhat(of_all[name].rhat),
            "–" if diagnosis.constant else f"{min(diagnosis.ess_bulk, diagnosis.ess_tail):,.0f}",
        )
        for name, diagnosis in estimator.diagnostics_.items()
    ]
    head = ("Quantity", "Mean ± Monte Carlo error", "R-hat", "R-hat of all chains", "Effective sample size")
    return TextTable("Convergence diagnostics of the chains with positive weight", head, rows) if rows else None


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Yield findings: chains that disagree, failed or have not mixed, and parameters at a bound."""
    fit_diagnostics = cast(ChainDiagnostics, summary.estimator.fit_diagnostics_)
    for text in convergence_warnings(fit_diagnostics, summary.given["chains_by"]):
        modes = "different modes" in text
        yield Finding(
            "advice" if modes else "problem",
            "Chains are in different modes" if modes else "Chains have not converged",
            text[0].upper() + text[1:] + ".",
            f"This is common on difficult tables. Raise {summary.show('chains')}: more chains find good modes more "
            "often. Set chains_by='all' to include every chain."
            if modes
            else f"Raise {summary.show('sweeps')}, or {summary.show('chains')}.",
        )
    concentration = fit_diagnostics.diagnostics.get("log_concentration")
    if concentration and abs(concentration["mean"]) > _BOUND:
        yield Finding(
            "advice",
            "The concentration is at its bound",
            f"The posterior mean of log α is {concentration['mean']:.1f}; its bounds are ±18. The sampled graphs "
            "hardly constrain α.",
            "Set concentration_prior to a gamma prior with a larger shape.",
        )
    most = summary.given["max_hidden"]
    hidden = fit_diagnostics.diagnostics.get("hidden")
    if most is not None and hidden and hidden["mean"] > most - 1.0:
        yield Finding(
            "advice",
            "The number of hidden units is at its limit",
            f"The posterior mean is {hidden['mean']:.1f} hidden units; at most {most} are allowed.",
            f"Raise {summary.show('max_hidden')}, or set max_hidden=None.",
        )
