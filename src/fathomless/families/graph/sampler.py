"""Markov chain over infinite networks: sweeps of all moves, with a growing number of rows in the burn-in."""

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

__all__ = ["GraphSampler", "count_cells"]

_PASSES = 20  # passes over the hidden activations after rows are added
_RENEW = 1000  # sweeps between recomputations of the residuals, against accumulated rounding
_CHECK = 50  # sweeps between checks of the log joint density
_PORTIONS = (0.2, 0.4)  # shares of the rows in the first and the second quarter of the burn-in


def count_cells(rows: int) -> int:
    """Return the number of grid cells for births: the variance of the log weight grows with the number of rows."""
    return math.ceil(60 * math.sqrt(math.sqrt(max(1.0, rows / 500))))


@dataclass(frozen=True, kw_only=True)
class GraphSampler(Sampler[State]):
    """Sampler of graphs, weights and activations.

    Parameters
    ----------
    values : (D, N)
        Activations of observed units, and values of covariates; rows in the order in which they are added.
    orders, roles : (D,)
        Orders and roles of observed units.
    prior : GraphPrior
        Prior, with initial values of its parameters.
    engine : Engine
        Moves of a sweep.
    hyper : (3, 2)
        Shape and rate of 1 / alpha, gamma and phi.
    scales, precision : (float, float)
        Scales of biases and weights; shape and rate of precisions.
    births : int
        Birth or death proposals per sweep; for the Indian chefs process every second one allows parents.
    most : int
        Largest number of hidden units; -1 for no limit.
    growing : int
        Number of sweeps with a part of the rows: 20 % in the first half of them, 40 % in the second. 0 for all rows.
    labels : (N,), optional
        Classes, if the outputs are latent units of fixed precision.
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
    popular: bool = field(init=False)  #: True if an observed unit may have children, so that phi has an effect
    with_parents: NDArray[np.bool_] = field(init=False)  #: for each birth or death, True to allow parents

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", count_cells(self.values.shape[1]))
        object.__setattr__(self, "popular", bool(self.prior.kind == "icp" and (self.orders > 0).any()))
        second = np.arange(self.births) % 2 == 1
        object.__setattr__(self, "with_parents", second & (self.prior.kind == "icp"))

    def rows(self, done: int) -> int:
        """Return the number of rows that a sweep uses after `done` sweeps."""
        total = int(self.values.shape[1])
        portion = 1.0 if done >= self.growing else _PORTIONS[2 * done // self.growing]
        return total if portion == 1.0 else min(total, max(math.ceil(portion * total), 10))

    def start(self, generator: np.random.Generator) -> State:
        """Return the initial state, without edges and hidden units."""
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
        """Do one sweep: all moves once."""
        rows = self.rows(done)
        moves = self.engine
        if rows > state.a.shape[1]:
            state = self._add_rows(state, rows, generator)
        state = enlarge(state, self.births)
        gram, cross = moves.compute_products(state)
        moves.draw_edges(state, gram, cross, generator)
        moves.draw_precisions(state, generator)
        moves.try_births_and_deaths(state, self.with_parents, self.cells, self.most, generator)
        moves.slice_pass(state, generator)
        moves.elliptical_pass(state, generator)
        if self.labels is not None:
            latent_pass(state, self.labels[:rows], generator)
        moves.draw_orders(state, generator)
        moves.draw_hyperparameters(state, self.hyper, self.popular, generator)
        if (done + 1) % _RENEW == 0:
            state.e[: state.size[UNITS]] = residuals(state)
        if (done + 1) % _CHECK == 0:
            try:
                log_joint(state)
            except DivergenceError as error:
                raise DivergenceError(f"{error}; scale the columns, or use narrower priors") from error
        return state

    def _add_rows(self, state: State, rows: int, generator: np.random.Generator) -> State:
        """Add rows: draw their hidden activations forward, then update them by some passes."""
        old = state.a.shape[1]
        units = state.size[UNITS]
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
        """Return traced quantities: graph size, hyperparameters, observed precisions and biases, log-likelihood."""
        graph = graph_of(state)
        units = state.size[UNITS]
        proper = np.flatnonzero(self.roles != COVARIATE)
        rho, e = state.rho[proper], state.e[proper]
        log_likelihood = 0.5 * np.log(rho / (2 * np.pi)) - 0.5 * rho * (e**2).mean(1)
        traced = {
            "hidden": graph.hidden,
            "edges": graph.links,
            "depth": graph.depth,
            "log_concentration": math.log(state.law[0]),
            "log_mass": math.log(state.law[1]),
            "weights_squared": float((state.weight[:units, :units] ** 2).sum()),
            "log_likelihood": float(log_likelihood.sum()),
        }
        if self.popular:
            traced["log_popularity"] = math.log(state.law[PHI])
        for place, unit in enumerate(proper):
            traced[f"log_precision_{place}"] = math.log(state.rho[unit])
            traced[f"bias_{place}"] = float(state.b[unit])
        return traced

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
        """Return the state from its arrays."""
        return State(**{name: np.ascontiguousarray(arrays[name]) for name in State._fields}).copy()
