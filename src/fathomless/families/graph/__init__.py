"""Infinite graphs: posteriors over hidden units and their connections. This folder imports no other family."""

from fathomless.families.family import Family
from fathomless.families.graph.options import GraphOptions
from fathomless.system.citations import Reference

__all__ = ["FAMILY"]

_ESTIMATOR = "fathomless.families.graph.estimator"

#: Entry of the registry of families.
FAMILY = Family(
    name="graph",
    title="graphs of hidden units, sampled by Markov chains",
    options=GraphOptions,
    classifier=f"{_ESTIMATOR}:IndianChefsClassifier",
    regressor=f"{_ESTIMATOR}:IndianChefsRegressor",
    density=f"{_ESTIMATOR}:IndianChefsDensity",
    report="fathomless.families.graph.report:page",
    findings="fathomless.families.graph.report:findings",
    noise=False,
    networks="fathomless.families.graph.networks:GraphNetworks",
    papers=(
        Reference(
            "dallaire2016bayesian",
            "misc",
            (
                "Patrick Dallaire",
                "Ludovic Trottier",
                "Philippe Giguère",
                "Brahim Chaib-draa",
                "François Laviolette",
            ),
            "Bayesian Nonparametric Deep Learning",
            2016,
            "note",
            "Preprint",
        ),
    ),
    progress={"mean_hidden": "hidden units", "mean_edges": "edges"},
)
