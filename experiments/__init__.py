"""The experiments of the papers, and some beyond them: what ``fathomless reproduce`` runs.

They are run from a clone and are no part of the installed package. The command finds this folder beside ``src``; Python
imports it with the clone on its path (``PYTHONPATH``).

An experiment is a module of this package with two functions::

    run(request: Request) -> Result
    figure(result) -> Figure

A request (:class:`~experiments.results.Request`) names its mode: ``"smoke"`` takes seconds on one core and needs no
more data than it says, ``"full"`` is the experiment. A full run is cut into parts
(:func:`fathomless.system.jobs.run_parts`), each kept in the folder `out` as soon as it is done, so that a run which
was interrupted goes on where it stood. ``figure`` draws a result, also one that was read back from its file, with what
:mod:`fathomless.plots` offers.

To add one: write the module, add its line to :data:`EXPERIMENTS`, and write into ``expected.json``, under its name and
mode (``"smoke"``, ``"full/default"``, ``"full/paper"``), what it must show and where that comes from
(:class:`~experiments.results.Expectation`). The command line, the tests and the documentation follow.
Experiments may import everything but the application.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from fathomless.system.errors import DataError

if TYPE_CHECKING:
    from experiments.results import Request, Result

__all__ = ["EXPERIMENTS", "PRESETS", "Experiment", "Module", "find", "listing"]

#: What ``--preset`` allows.
PRESETS = ("default", "paper")


class Module(Protocol):
    """What the module of an experiment offers."""

    def run(self, request: "Request") -> "Result":
        """Run it."""

    def figure(self, result: "Result") -> Any:
        """Draw a result as a matplotlib Figure."""


@dataclass(frozen=True)
class Experiment:
    """An experiment, before its module is loaded.

    Attributes
    ----------
    name : str
        Of the module, and on the command line.
    title, source : str
        What it shows, and the figures or tables that it follows.
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
    Experiment("structure", "Depth follows the data: tables whose truth is known", "beyond the papers"),
    Experiment("uci", "Regression on nine tables, against finite depths", "Nazaret and Blei (2022), Figure 8"),
    Experiment("cifar", "Depth follows the difficulty of images", "Nazaret and Blei (2022), Table 2, Figures 4, 7"),
    Experiment(
        "images", "Images by networks whose weights may be absent", "Skaaret-Lund and others (2023), Tables 1, 2"
    ),
    Experiment(
        "clusters", "Five clusters: unsure where nothing was seen", "Skaaret-Lund and others (2023), Figures 5-10"
    ),
    Experiment("sequences", "Transformers of unbounded depth, and Bayesian layers inside", "beyond the paper"),
    Experiment("joint", "Depth and sparsity inferred together", "beyond the papers"),
    Experiment("logistic", "Which of twenty columns matter", "Skaaret-Lund and others (2023), Table 3, Figure 4"),
    Experiment("paths", "Toy regressions by paths of weights", "Xu and others (2020), Figures 2-4"),
    Experiment("doubt", "Doubt where there are no data, beside the model's own posterior", "beyond the papers"),
    Experiment("landing", "Gradients without variance at the optimum", "Xu and others (2020), section 3.1"),
    Experiment("solvers", "What a step costs: orders, divergences, gradients, grids", "beyond the paper"),
    Experiment("digits", "Digits by paths of weights, against the number of steps", "beyond the paper"),
    Experiment("continuous_images", "MNIST by paths of weights", "Xu and others (2022), Table 1"),
    Experiment("continuous_uci", "Nine tables by paths of weights, against other families", "beyond the papers"),
    Experiment("chefs", "Graphs drawn from the Indian chefs process and its relatives", "Dallaire and others (2016)"),
    Experiment("conditional", "Six tables by infinite graphs, against other families", "beyond the papers"),
    Experiment("densities", "Densities of nine tables by infinite graphs", "Dallaire and others (2016), Table 1"),
    Experiment("manifolds", "Every cluster of weights, and doubt in a gap", "Pradier and others (2018), Figures 1-3"),
    Experiment("manifold_uci", "Nine tables by weight manifolds", "Pradier and others (2018), Figures 4, 5"),
    Experiment("horizon", "A random horizon: does it follow the rotation of spirals", "beyond the papers"),
)


def find(name: str) -> Experiment:
    """Return the experiment of a name.

    Raises
    ------
    DataError
        If there is none.
    """
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise DataError(f"there is no experiment {name!r}; there are {', '.join(e.name for e in EXPERIMENTS)}")


def listing() -> str:
    """Return one line for each experiment: name, title, source."""
    names, titles = max(len(e.name) for e in EXPERIMENTS), max(len(e.title) for e in EXPERIMENTS)
    return "\n".join(f"{e.name:<{names}}  {e.title:<{titles}}  {e.source}" for e in EXPERIMENTS)
