"""Experiments of ``fathomless reproduce``: those of the papers, and some that are in no paper.

They are run from a clone and are not part of the installed package. The command finds this folder beside ``src``.
Python imports it with the clone on its path (``PYTHONPATH``).

An experiment is a module of this package with two functions::

    run(request: Request) -> Result
    figure(result) -> Figure

A request (:class:`~experiments.results.Request`) has a mode. ``"smoke"`` takes seconds on one core and needs no data
except those that the docstring of ``run`` names; ``"full"`` is the complete experiment. A full run is split into parts
(:func:`fathomless.system.jobs.run_parts`). Each part is saved in the folder `out` as soon as it is done, so an
interrupted run resumes from the saved parts. ``figure`` draws a result with :mod:`fathomless.plots`, also a result
that was read from its file.

To add an experiment, write the module and add its line to :data:`EXPERIMENTS`. Then add the expected values and their
sources to ``expected.json`` (:class:`~experiments.results.Expectation`), under the name and mode (``"smoke"``,
``"full/default"``, ``"full/paper"``). The command line, the tests and the documentation use these entries.
Experiments may import every package except the application.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from fathomless.system.errors import DataError

if TYPE_CHECKING:
    from experiments.results import Request, Result

__all__ = ["EXPERIMENTS", "PRESETS", "Experiment", "Module", "find", "listing"]

#: Values of ``--preset``.
PRESETS = ("default", "paper")


class Module(Protocol):
    """Interface of the module of an experiment."""

    def run(self, request: "Request") -> "Result":
        """Run the experiment."""

    def figure(self, result: "Result") -> Any:
        """Draw a result as a matplotlib Figure."""


@dataclass(frozen=True)
class Experiment:
    """An experiment, before its module is loaded.

    Attributes
    ----------
    name : str
        Name of the module, and of the experiment on the command line.
    title, source : str
        Subject, and the figures or tables that it reproduces.
    """

    name: str
    title: str
    source: str

    def load(self) -> Module:
        """Import the module."""
        return cast(Module, importlib.import_module(f"experiments.{self.name}"))


#: Every experiment, in the order of ``fathomless reproduce --list``.
EXPERIMENTS = (
    Experiment("spiral", "Spirals: accuracy and depth against rotation", "Nazaret and Blei (2022), Figure 3, Table 1"),
    Experiment("structure", "Posterior over depth on tables with known truth", "in no paper"),
    Experiment("uci", "Regression on nine tables, compared with finite depths", "Nazaret and Blei (2022), Figure 8"),
    Experiment(
        "cifar",
        "Posterior over depth and difficulty of image classes",
        "Nazaret and Blei (2022), Table 2, Figures 4, 7",
    ),
    Experiment("images", "Image classification by sparse networks", "Skaaret-Lund and others (2023), Tables 1, 2"),
    Experiment(
        "clusters", "Five clusters: uncertainty away from the data", "Skaaret-Lund and others (2023), Figures 5-10"
    ),
    Experiment("sequences", "Transformers of unbounded depth with Bayesian layers", "in no paper"),
    Experiment("joint", "Depth and sparsity inferred together", "in no paper"),
    Experiment(
        "logistic", "Variable selection among twenty columns", "Skaaret-Lund and others (2023), Table 3, Figure 4"
    ),
    Experiment("paths", "Toy regressions by continuous depth", "Xu and others (2020), Figures 2-4"),
    Experiment("doubt", "Uncertainty away from the data, compared with the exact posterior", "in no paper"),
    Experiment("landing", "Variance of gradient estimators at the optimum", "Xu and others (2020), section 3.1"),
    Experiment("solvers", "Discretisation: orders, divergences, gradients, grids", "in no paper"),
    Experiment("digits", "Digits by continuous depth, against the number of steps", "in no paper"),
    Experiment("continuous_images", "MNIST by continuous depth", "Xu and others (2022), Table 1"),
    Experiment("continuous_uci", "Nine tables by continuous depth, compared with other families", "in no paper"),
    Experiment("chefs", "Graphs drawn from the Indian chefs process and related priors", "Dallaire and others (2016)"),
    Experiment("conditional", "Six tables by infinite graphs, compared with other families", "in no paper"),
    Experiment("densities", "Densities of nine tables by infinite graphs", "Dallaire and others (2016), Table 1"),
    Experiment(
        "manifolds",
        "Modes of the posterior over weights, and uncertainty in a gap",
        "Pradier and others (2018), Figures 1-3",
    ),
    Experiment("manifold_uci", "Nine tables by weight manifolds", "Pradier and others (2018), Figures 4, 5"),
    Experiment("horizon", "Posterior over a random horizon and rotation of spirals", "in no paper"),
)


def find(name: str) -> Experiment:
    """Return the experiment of a name.

    Raises
    ------
    DataError
        If there is no experiment of that name.
    """
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise DataError(f"there is no experiment {name!r}; there are {', '.join(e.name for e in EXPERIMENTS)}")


def listing() -> str:
    """Return one line for each experiment: name, title, source."""
    names, titles = max(len(e.name) for e in EXPERIMENTS), max(len(e.title) for e in EXPERIMENTS)
    return "\n".join(f"{e.name:<{names}}  {e.title:<{titles}}  {e.source}" for e in EXPERIMENTS)
