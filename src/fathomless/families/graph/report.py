"""What a page shows of a posterior over graphs, and what the doctor says of its chains."""

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
    "selected": "those near the best one, by the rows that they were given",
    "all": "all of them, alike",
    "stacked": "weighed by rows that were held out",
}
_BOUND = 17.9  # |log α| at which its slice sampler is bounded, nearly


def page(estimator: Estimator) -> StructureSection:
    """Return numbers of units, what columns have to do with each other, a network, and the chains."""
    structure = estimator.structure_
    figures = [
        picture(
            f"count-{place}",
            partial(plots.counts, law, what),
            says=f"Posterior of the {what}: "
            + ", ".join(f"{value} with {percent(p)}" for value, p in law.items())
            + ".",
            caption="How many hidden units there are." if what == "hidden units" else "Edges of the longest path.",
        )
        for place, (what, law) in enumerate(structure.counts.items())
        if what != "edges"
    ]
    groups = [Group("Size", figures), _columns(estimator), Group("One network", _network(estimator))]
    groups += [Group("Chains", [], _chains(estimator)), Group("Convergence", [], _convergence(estimator))]
    used = sum(chain.get("weight", 0.0) > 0.0 for chain in estimator.chains_)
    return StructureSection(
        [group for group in groups if group.figures or group.table],
        _traces(estimator),
        about=f"Predictions average networks of {used} of {len(estimator.chains_)} chains: "
        f"{_SELECTED[estimator.chains_by]}.",
        note="Hidden units have no names, so only what does not depend on names is shown; the network that is drawn is "
        "a likely one, not the posterior. Chains seldom change their mode: what is said is conditional on the modes "
        "that were found.",
        objective="Nothing was maximised. Chains sampled graph, weights, noise and hidden activations together, with "
        "all rows in every sweep.",
    )


def _columns(estimator: Estimator) -> Group:
    """Return which columns are used, or which depend on each other."""
    if isinstance(estimator, IndianChefsDensity):
        names = [column.name for column in estimator.schema_.columns]
        table = estimator.dependence()
        pairs = [(table[i, j], names[i], names[j]) for i in range(len(names)) for j in range(i)]
        told = ", ".join(f"{b} and {a} {percent(p)}" for p, a, b in sorted(pairs, reverse=True)[:5])
        figure = picture(
            "dependence",
            partial(plots.dependence, table, names),
            says=f"Probability that two columns have a common ancestor among the hidden units: {told}.",
            caption="Probability that two columns have a common ancestor: without one they are independent.",
        )
        return Group("Columns", [figure] if len(names) > 1 else [])
    relevance = estimator.relevance()
    rows = [
        (name, percent(told["used"]), percent(told["direct"]), number(told["children"], 2))
        for name, told in sorted(relevance.items(), key=lambda item: -item[1]["used"])
    ]
    head = ("Column", "A path leads to a target", "An edge does", "Children")
    return Group("Columns", [], TextTable("Columns, by the probability that they are used", head, rows))


def _network(estimator: Estimator) -> list[Figure]:
    """Draw the network whose sizes are nearest to those of all that are used, if it can be read."""
    model = estimator.model_
    used = (model.log_weight > -math.inf).nonzero()[:, 0].tolist()
    states = model.states()
    graphs = {place: graph_of(states[place], model.observed) for place in used}
    sizes = np.array([[graph.hidden, graph.links] for graph in graphs.values()], dtype=float)
    apart = np.abs((sizes - np.median(sizes, 0)) / np.maximum(sizes.std(0), 1.0)).sum(1)
    place = used[int(np.argmin(apart))]
    network, state = graphs[place], states[place]
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
            caption="One of the sampled networks, of middling size. Observed units are squares; an edge is the wider "
            "the more it moves its child; dashes are negative weights.",
            height=4.2,
        )
    ]


def _traces(estimator: Estimator) -> list[Figure]:
    told = estimator.fit_diagnostics_.traces
    used = [chain.get("weight", 0.0) > 0.0 for chain in estimator.chains_]
    words = {"hidden": "hidden units", "log_likelihood": "log-likelihood per row"}
    return [
        picture(
            f"trace-{name}",
            partial(traces, told[name], told["sweeps"], told["burn_in"], used, what),
            says=f"The {what} of {len(used)} chains over {told['sweeps']:,} sweeps; at the end "
            + join_words([number(values[-1]) for values in told[name] if values], 12)
            + ".",
            caption=f"Chains: {what}, with hidden activations as they are. States are kept to the right of the line.",
        )
        for name, what in words.items()
        if name in told
    ]


def _chains(estimator: Estimator) -> TextTable:
    rows = [
        (
            str(chain["chain"] + 1),
            number(chain["log_likelihood"], 4) if "log_likelihood" in chain else "–",
            percent(chain.get("weight", 0.0)),
            f"{chain['states']:,}",
            chain["error"] or "ran to its end",
        )
        for chain in estimator.chains_
    ]
    return TextTable(
        "Chains, by the log-likelihood of the rows they were given, hidden activations integrated out",
        ("Chain", "Nats per row", "Weight", "States", "End"),
        rows,
    )


def _convergence(estimator: Estimator) -> TextTable | None:
    of_all = estimator.diagnostics_of_all_

    def shown(rhat: float | None) -> str:
        return "constant" if rhat is None else number(rhat, 3)

    rows = [
        (
            name.replace("_", " "),
            f"{number(one.mean)} ± {number(one.mcse, 2)}",
            shown(one.rhat),
            shown(of_all[name].rhat),
            "–" if one.constant else f"{min(one.ess_bulk, one.ess_tail):,.0f}",
        )
        for name, one in estimator.diagnostics_.items()
    ]
    head = ("Quantity", "Mean ± Monte Carlo error", "R-hat", "R-hat of all chains", "Effective draws")
    return TextTable("What the chains that are used followed", head, rows) if rows else None


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Say if chains disagree, failed or have not mixed, if the prior is at a bound, and if nothing was found."""
    told = cast(ChainDiagnostics, summary.estimator.fit_diagnostics_)
    for text in convergence_warnings(told, summary.given["chains_by"]):
        modes = text.startswith("chains are in different modes")
        yield Finding(
            "advice" if modes else "problem",
            "Chains are in different modes" if modes else "Chains have not converged",
            text[0].upper() + text[1:] + ".",
            "Usual on tables that are hard. More chains find good modes more often: raise "
            f"{summary.show('chains')}; chains_by='all' shows what the others say."
            if modes
            else f"Raise {summary.show('sweeps')}, or {summary.show('chains')}.",
        )
    concentration = told.diagnostics.get("log_concentration")
    if concentration and abs(concentration["mean"]) > _BOUND:
        yield Finding(
            "advice",
            "The concentration is at its bound",
            f"Its logarithm has the mean {concentration['mean']:.1f}, and 18 is the bound: the graph hardly tells of "
            "it.",
            "Give another concentration_prior, with a larger shape.",
        )
    most, hidden = summary.given["max_hidden"], told.diagnostics.get("hidden")
    if most is not None and hidden and hidden["mean"] > most - 1.0:
        yield Finding(
            "advice",
            "The graph is at its bound",
            f"It has {hidden['mean']:.1f} hidden units on average, and {most} is the most.",
            f"Raise {summary.show('max_hidden')}, or leave it out.",
        )
