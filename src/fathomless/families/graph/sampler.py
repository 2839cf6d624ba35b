"""The chain over infinite networks: one sweep of all moves, data that come in portions, and what is told and kept."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathomless.families.graph.engine import Engine
from fathomless.families.graph.priors import GraphPrior
from fathomless.families.graph.probit import latent_pass
from fathomless.families.graph.state import (
    COVARIATE,
    HIDDEN,
    OBSERVED,
    PHI,
    UNITS,
    Floats,
    State,
    empty,
    enlarge,
    graph_of,
    log_joint,
    logistic,
    residuals,
)
from fathomless.inference.mcmc.chains import Arrays, Sampler
from fathomless.system.errors import DivergenceError

__all__ = ["GraphSampler", "cells_for"]

_PASSES = 20  # over the activations of rows that have just come
_RENEW = 1000  # sweeps after which residuals are computed anew, against rounding
_CHECK = 50  # sweeps after which the log joint is looked at
_PORTIONS = (0.2, 0.4)  # of the rows, in the first and the second quarter of the burn-in


def cells_for(rows: int) -> int:
    """Return how many cells the grid of a birth has: the variance of its weight grows with the rows."""
    return math.ceil(60 * math.sqrt(math.sqrt(max(1.0, rows / 500))))


@dataclass(frozen=True, kw_only=True)
class GraphSampler(Sampler[State]):
    """Chains over graphs, weights and activations.

    Parameters
    ----------
    values : (D, N)
        Activations of observed units, and covariates as they are; in the order in which rows come.
    orders, roles : (D,)
        Of observed units.
    prior : GraphPrior
        Which one, and where its parameters begin.
    engine : Engine
        The moves.
    hyper : (3, 2)
        Shape and rate of 1 / alpha, gamma and phi.
    scales, precision : (float, float)
        Scales of biases and weights; shape and rate of precisions.
    births : int
        Tries of a birth or death in each sweep; with the Indian chefs every other one lets newborns have parents.
    most : int
        Hidden units allowed; -1 is no limit.
    growing : int
        Sweeps in whose first and second half a fifth and two fifths of the rows are used; 0 uses all at once.
    labels : (N,), optional
        Classes, if the outputs are latent: units of fixed precision.
    """

    values: Floats
    orders: Floats
    roles: NDArray[np.int8]
    prior: GraphPrior
    engine: Engine
    hyper: Floats
    scales: tuple[float, float] = (1.0, 1.0)
    precision: tuple[float, float] = (0.5, 0.5)
    births: int = 4
    most: int = -1
    growing: int = 0
    labels: NDArray[np.int64] | None = None
    cells: int = field(init=False)
    popular: bool = field(init=False)  #: whether phi matters: an observed unit may have children

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", cells_for(self.values.shape[1]))
        object.__setattr__(self, "popular", bool(self.prior.kind == "icp" and (self.orders > 0).any()))

    def rows(self, done: int) -> int:
        """Return how many rows a sweep sees, after so many."""
        total = int(self.values.shape[1])
        portion = 1.0 if done >= self.growing else _PORTIONS[2 * done // self.growing]
        return total if portion == 1.0 else min(total, max(math.ceil(portion * total), 10))

    def start(self, generator: np.random.Generator) -> State:
        """Begin without edges and hidden units."""
        state = empty(
            self.values[:, : self.rows(0)],
            self.orders,
            self.roles,
            self.prior,
            scales=self.scales,
            precision=self.precision,
        )
        if self.labels is not None:
            latent_pass(state, self.labels[: self.rows(0)], generator)
        return state

    def sweep(self, state: State, done: int, generator: np.random.Generator) -> State:
        """Do all moves once."""
        rows, moves = self.rows(done), self.engine
        if rows > state.a.shape[1]:
            state = self._more(state, rows, generator)
        state = enlarge(state, self.births)
        gram, cross = moves.products(state)
        moves.edges(state, gram, cross, generator)
        moves.precisions(state, generator)
        moves.births_and_deaths(state, self.births, self.cells, self.most, generator)
        moves.slice_pass(state, generator)
        moves.elliptical_pass(state, generator)
        if self.labels is not None:
            latent_pass(state, self.labels[:rows], generator)
        moves.orders(state, generator)
        moves.hyperparameters(state, self.hyper, self.popular, generator)
        if (done + 1) % _RENEW == 0:
            state.e[: state.size[UNITS]] = residuals(state)
        if (done + 1) % _CHECK == 0:
            try:
                log_joint(state)
            except DivergenceError as error:
                raise DivergenceError(f"{error}; scale the columns, or give narrower priors") from error
        return state

    def _more(self, state: State, rows: int, generator: np.random.Generator) -> State:
        """Add rows: their hidden activations are drawn from above, and then by some passes of their own moves."""
        old, units = state.a.shape[1], state.size[UNITS]
        wide: dict[str, Any] = {name: np.zeros((len(state.theta), rows)) for name in ("a", "u", "e")}
        for name, new in wide.items():
            new[:, :old] = getattr(state, name)
        state = state._replace(**wide)
        observed = state.size[OBSERVED]
        covariate = (self.roles == COVARIATE)[:, None]
        values = self.values[:, old:rows]
        state.a[:observed, old:] = np.where(covariate, 0.0, values)
        state.u[:observed, old:] = np.where(covariate, values, logistic(values))
        weights = np.where(state.edge, state.weight, 0.0)[:units, :units]
        for unit in np.argsort(-state.theta[:units], kind="stable"):
            if state.role[unit] == HIDDEN:
                mean = state.b[unit] + weights[:, unit] @ state.u[:units, old:]
                state.a[unit, old:] = mean + generator.standard_normal(rows - old) / math.sqrt(state.rho[unit])
                state.u[unit, old:] = logistic(state.a[unit, old:])
        state.e[:units] = residuals(state)
        for _ in range(_PASSES):
            self.engine.slice_pass(state, generator)
            self.engine.elliptical_pass(state, generator)
            if self.labels is not None:
                latent_pass(state, self.labels[:rows], generator)
        return state

    def follow(self, state: State) -> dict[str, float]:
        """Return sizes of the graph, hyperparameters, precisions and biases of observed units, and their fit."""
        graph = graph_of(state)
        units = state.size[UNITS]
        proper = np.flatnonzero(self.roles != COVARIATE)
        rho, e = state.rho[proper], state.e[proper]
        log_likelihood = 0.5 * np.log(rho / (2 * np.pi)) - 0.5 * rho * (e**2).mean(1)
        told = {
            "hidden": graph.hidden,
            "edges": graph.links,
            "depth": graph.depth,
            "log_concentration": math.log(state.law[0]),
            "log_mass": math.log(state.law[1]),
            "weights_squared": float((state.weight[:units, :units] ** 2).sum()),
            "log_likelihood": float(log_likelihood.sum()),
        }
        if self.popular:
            told["log_popularity"] = math.log(state.law[PHI])
        for place, unit in enumerate(proper):
            told[f"log_precision_{place}"] = math.log(state.rho[unit])
            told[f"bias_{place}"] = float(state.b[unit])
        return told

    def keep(self, state: State) -> Arrays:
        """Return the network without activations: orders, biases, precisions, edges with weights, hyperparameters."""
        units = state.size[UNITS]
        upper, lower = np.nonzero(state.edge[:units, :units])
        return {
            "orders": state.theta[:units].copy(),
            "biases": state.b[:units].copy(),
            "precisions": state.rho[:units].copy(),
            "parents": upper,
            "children": lower,
            "weights": state.weight[upper, lower],
            "law": state.law[: PHI + 1].copy(),
        }

    def pack(self, state: State) -> Arrays:
        """Return all arrays of the state."""
        return state._asdict()

    def unpack(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Put a state together again."""
        return State(**{name: np.ascontiguousarray(arrays[name]) for name in State._fields}).copied()
