"""The fits that the battery looks at: every registered family, one of another package, some variants; all tiny."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import toy_family
from fathomless.data.rows import Rows
from fathomless.estimators.base import Estimator
from fathomless.estimators.tasks import BaseRegressor, Classifier
from fathomless.estimators.values import Restarts
from fathomless.families.family import Family
from fathomless.families.registry import estimator_class, families, options
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Draws, Model

Array = npt.NDArray[Any]

ROWS = 84  # enough for rows to be held out, and three steps in an epoch
#: Short, narrow, and with rows held out; a family takes those that it has. The history gets rows at epochs 3, 6 and 9.
TINY = {"epochs": 9, "width": 6, "batch_size": 24, "weight_draws": 8, "validation_fraction": 0.2, "patience": None}
AVERAGE = {"n_restarts": Restarts(count=2, keep="average")}
#: Fast, in double, and with weights that move.
PATHS = {"hidden": 6, "solver__steps": 3, "path__rate": 0.1, "precision": "auto", "optimizer__warm_up": 0.0}
#: Three stages that are short.
STAGES = {"candidates": 12, "candidate_steps": 80, "latent_dim": 4, "decoder_width": 8, "decoder_steps": 80}
STAGES |= {"components": 3, "latent_steps": 40}
#: Family -> its variants: options, and the parts of the uncertainty that are exactly 0.
VARIANTS: dict[str, dict[str, tuple[dict[str, Any], set[str]]]] = {
    "depth": {
        "": ({}, {"weights"}),
        "elbo": ({"structure_from": "elbo"}, {"weights"}),
        "cross-fitted": ({"cv": 3, "validation_fraction": "auto"}, set()),
        "trees": ({"cv": 3, "validation_fraction": "auto", "trees": True}, set()),
        "heads": ({"last_layer": "laplace"}, set()),
        "meanfield": ({"weights": "meanfield"}, set()),
        "sparse": ({"weights": "sparse"}, set()),
        "average": (AVERAGE, set()),
        "sparse-average": ({"weights": "sparse", **AVERAGE}, set()),
    },
    "sparse": {
        "": ({}, set()),
        "flow": ({"posterior": "flow", "temperature": 0.5}, set()),
        "slab": ({"posterior": "slab"}, {"structure"}),
        "median": ({"predict_by": "median"}, {"structure"}),
        "average": (AVERAGE, set()),
    },
    "continuous": {
        "": (PATHS, {"structure"}),
        "cross-fitted": ({**PATHS, "cv": 3, "validation_fraction": "auto"}, {"structure"}),
        "random": ({**PATHS, "horizon": "random", "horizon__count": 2}, set()),
        "random-elbo": ({**PATHS, "horizon": "random", "horizon__count": 2, "structure_from": "elbo"}, set()),
        "gaussian": ({**PATHS, "path__initial": "gaussian"}, {"structure"}),
        "learned": ({**PATHS, "path__rate": "learned"}, {"structure"}),
        "lowrank": (
            {**PATHS, "path__drift": "lowrank", "path__rank": 4, "path__stochastic": "last"},
            {"structure"},
        ),
        "network": ({**PATHS, "path__drift": "network", "path__rank": 4, "path__estimator": "sticking"}, {"structure"}),
        "average": ({**PATHS, **AVERAGE}, {"structure"}),
    },
    "graph": {"": ({"chains": 2, "sweeps": 60, "states": 20, "weight_draws": 4, "engine": "numpy"}, set())},
    "manifold": {"": (STAGES, set()), "linear": ({**STAGES, "decoder_width": 0, "decoder_law": "none"}, set())},
    "finite": {"": ({}, {"structure", "weights"})},
    "depth-uncertainty": {"": ({"depths": 3}, {"weights"})},
    "dropout": {"": ({}, {"structure"})},
    "meanfield": {"": ({}, {"structure"})},
    "laplace": {"": ({}, {"structure"})},
    "swag": {"": ({"passes": 12, "networks": 8}, {"structure"})},
    "subspace": {"": ({"passes": 12, "networks": 8}, {"structure"})},
    "matrix-normal": {"": ({}, {"structure"})},
    "ensemble": {"": (AVERAGE, {"structure"})},
}


@dataclass(frozen=True, eq=False)
class Case:
    """A family, a task, and options.

    Attributes
    ----------
    name : str
        For the report of the tests.
    family, task
        What is fitted.
    options : mapping
        Options that the variant has beside those of all cases.
    closed : frozenset of str
        Parts of the uncertainty that are 0 by construction; the others are not.
    """

    name: str
    family: Family
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()

    @property
    def plain(self) -> bool:
        """Whether it is the family as it comes, not a variant."""
        return self.name == f"{self.family.name}-{self.task}"

    def estimator(self, **more: Any) -> Any:
        """Build the estimator."""
        kind = estimator_class(self.family.tasks[self.task])
        known = options(self.family, self.task)
        given = {name: value for name, value in TINY.items() if name in known}
        return kind().set_params(**{**given, "random_state": 3, **self.options, **more})

    def table(self) -> tuple[Array, Any]:
        """Return X and y; a density has no y."""
        rng = np.random.default_rng(0)
        X = rng.normal(size=(ROWS, 3))
        if self.task == "classification":
            y = np.arange(ROWS) % 3
            return X + 0.7 * y[:, None], np.array(["high", "low", "mid"])[y]
        if self.task == "regression":
            return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.normal(size=ROWS)
        return X, None


def cases(which: Mapping[str, Family]) -> list[Case]:
    """Return the cases of some families: each task of the family as it comes and cross-fitted, and its variants.

    Options of most variants and the task do not interact: a variant is fitted in one task, which is classification for
    continuous depth, whose regressions are slow, and regression elsewhere.
    """
    in_each_task = ("", "cross-fitted", "trees")
    return [
        Case("-".join(filter(None, (name, variant, task))), family, task, given, frozenset(closed))
        for name, family in which.items()
        for variant, (given, closed) in VARIANTS.get(name, {"": ({}, {"weights"})}).items()
        for task in family.tasks
        if variant in in_each_task or task == ("classification" if name == "continuous" else "regression")
    ]


CASES: list[Case] = cases({**families(), toy_family.FAMILY.name: toy_family.FAMILY})


#: Those whose posterior was trained by epochs; others were sampled by chains, or found in stages.
TRAINED: list[Case] = [case for case in CASES if "epochs" in options(case.family, case.task)]
#: Those that have a law for each row.
PREDICTIVE: list[Case] = [case for case in CASES if case.task != "density" or case in TRAINED]


def chosen(*tasks: str) -> list[Case]:
    """Return the cases of some tasks."""
    return [case for case in CASES if case.task in tasks]


@cache
def fitted(case: Case) -> Any:
    """Fit a case, once. Whoever changes the result works on a copy of its model."""
    return case.estimator().fit(*case.table())


def parts(case: Case) -> tuple[Model, Likelihood]:
    """Return copies of the model and the likelihood of a fitted case."""
    estimator = fitted(case)
    copies: tuple[Model, Likelihood] = copy.deepcopy((estimator.model_, estimator.likelihood_))
    return copies


def rows(case: Case) -> Rows:
    """Return the table of a case as its network sees it."""
    estimator: Estimator = fitted(case)
    X, y = case.table()
    x = estimator._encode(estimator.schema_, X)
    z = torch.as_tensor(estimator.target_.encode(X if y is None else y))
    return Rows(torch.as_tensor(x, dtype=estimator.model_.dtype), z)


@torch.no_grad()
def drawn(model: Model, case: Case, n: int = 8, seed: int = 0) -> Draws:
    """Draw networks on the rows of a case."""
    return model.draw(rows(case).x, n, torch.Generator().manual_seed(seed))


def predicted(estimator: Any, X: Array) -> list[Array]:
    """Return everything that an estimator of any task says of some rows, rows along the first axis."""
    if isinstance(estimator, Classifier):
        return [estimator.predict_log_proba(X), estimator.predict(X)]
    if isinstance(estimator, BaseRegressor):
        mean, std = estimator.predict(X, return_std=True)
        return [mean, std, *estimator.predict_interval(X, 0.8)]
    return [estimator.score_samples(X)]


def named(listed: Sequence[Case]) -> dict[str, Any]:
    """Return the arguments of ``pytest.mark.parametrize``."""
    return {"argnames": "case", "argvalues": listed, "ids": [case.name for case in listed]}
