"""Second stage of a fit: what is learned from rows to which the networks were not fitted."""

from fathomless.estimators.encoding import Task
from fathomless.estimators.hurdle import add_atoms
from fathomless.estimators.neighbors import check_neighbors
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem
from fathomless.estimators.recalibration import recalibrate
from fathomless.estimators.trees import check_trees, pool_with_trees
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, choose_options

__all__ = ["add_second_stage", "check_second_stage"]


def check_second_stage(task: Task, table: Prepared) -> None:
    """Check that the options of the second stage can have an effect.

    Raises
    ------
    DataError
        If `neighbors` or `trees` is set, and other options or the table prevent it.
    """
    check_neighbors(task)
    check_trees(task, table)


def add_second_stage(fitted: Fitted, others: Prepared, table: Prepared, problem: Problem) -> tuple[Prepared, Fitted]:
    """Add the recalibration, boosted trees, and the probabilities of atoms of the target.

    Parameters
    ----------
    fitted : Fitted
        Result of the inference.
    others, table : Prepared
        Table without the atoms of the target, to which the networks were fitted, and the whole table.
    problem : Problem
        Networks and task of the fit.

    Returns
    -------
    Prepared
        Table with the encoding that the trials of the fit chose.
    Fitted
        Complete fit.
    """
    trials = fitted.diagnostics.trials if isinstance(fitted.diagnostics, CrossFitDiagnostics) else ()
    numbers = choose_options(trials).get("numbers")
    others, table = others.with_numbers(numbers), table.with_numbers(numbers)
    return table, add_atoms(pool_with_trees(recalibrate(fitted, others, problem), others, problem), table)
