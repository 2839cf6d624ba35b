"""State of a chain over belief networks: a graph, its weights, and the activations of hidden units at each row.

For unit i at row n, with parents pa(i),

    mu = b_i + sum_k W_ki u_kn,    a_in ~ N(mu, 1 / rho_i),    u_in = 1 / (1 + exp(-a_in)),    e_in = a_in - mu

Arrays have capacity for more units than are in use. Units in use come first, observed before hidden units. When a unit
is removed, the last one moves to its index.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fathomless.families.graph.graphs import Graph
from fathomless.families.graph.priors import PRIORS, GraphPrior
from fathomless.system.errors import DivergenceError

__all__ = [
    "COVARIATE",
    "FIXED",
    "FREE",
    "HIDDEN",
    "Floats",
    "State",
    "empty",
    "enlarge",
    "graph_of",
    "log_joint",
    "prior_of",
]

#: Roles of units (hidden; observed with a precision to infer; observed with a fixed precision; covariate).
HIDDEN, FREE, FIXED, COVARIATE = 0, 1, 2, 3

#: Kinds of priors, in the order of :data:`~fathomless.families.graph.priors.PRIORS`.
ICP, CIBP, ECIBP, IBP = range(len(PRIORS))

#: Indices into `State.law`.
ALPHA, GAMMA, PHI, BIAS_SCALE, WEIGHT_SCALE, SHAPE, RATE = range(7)
#: Indices into `State.size`: number of units in use, of observed units, and the kind of the prior.
UNITS, OBSERVED, KIND = range(3)

#: Arrays of double precision.
Floats = NDArray[np.float64]


class State(NamedTuple):
    """State of a chain, with capacity for C units at N rows.

    Attributes
    ----------
    theta, b, rho : (C,)
        Orders, biases, precisions.
    role, movable : (C,) of int8, of bool
        Role: HIDDEN, FREE, FIXED or COVARIATE; True if the order is inferred.
    edge, weight : (C, C) of bool, of float
        ``edge[k, i]`` is True if k is a parent of i.
    a, u, e : (C, N)
        Activations, outputs, residuals. Covariates have only u.
    law : (7,)
        alpha, gamma, phi, scales of biases and weights, shape and rate of precisions.
    size : (3,) of int64
        Number K of units in use, number D of observed units, kind of the prior.
    """

    theta: Floats
    b: Floats
    rho: Floats
    role: NDArray[np.int8]
    movable: NDArray[np.bool_]
    edge: NDArray[np.bool_]
    weight: Floats
    a: Floats
    u: Floats
    e: Floats
    law: Floats
    size: NDArray[np.int64]

    def copy(self) -> "State":
        """Return a copy of the state with its own arrays."""
        return State(**{name: getattr(self, name).copy() for name in self._fields})


def empty(
    values: Floats,
    orders: Floats,
    roles: NDArray[np.int8],
    prior: GraphPrior,
    *,
    movable: NDArray[np.bool_] | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
    precision: tuple[float, float] = (0.5, 0.5),
    capacity: int = 32,
) -> State:
    """Return the initial state without edges and hidden units: biases 0, precisions 1.

    Parameters
    ----------
    values : (D, N)
        Activations of observed units, and values of covariates.
    orders, roles, movable : (D,)
        Of observed units.
    prior : GraphPrior
        Prior, with initial values of alpha, gamma and phi.
    scales, precision
        Scales of biases and weights; shape and rate of precisions.
    capacity : int
        Number of units to allocate, at least.
    """
    observed, rows = values.shape
    capacity = max(capacity, observed + 8)
    law = [prior.concentration, prior.mass, prior.popularity, *scales, *precision]
    state = State(
        theta=np.zeros(capacity),
        b=np.zeros(capacity),
        rho=np.ones(capacity),
        role=np.zeros(capacity, dtype=np.int8),
        movable=np.ones(capacity, dtype=np.bool_),
        edge=np.zeros((capacity, capacity), dtype=np.bool_),
        weight=np.zeros((capacity, capacity)),
        a=np.zeros((capacity, rows)),
        u=np.zeros((capacity, rows)),
        e=np.zeros((capacity, rows)),
        law=np.array(law),
        size=np.array([observed, observed, PRIORS.index(prior.kind)]),
    )
    state.theta[:observed], state.role[:observed] = orders, roles
    state.movable[:observed] = False if movable is None else movable
    covariate = (roles == COVARIATE)[:, None]
    state.a[:observed] = np.where(covariate, 0.0, values)
    state.e[:observed] = state.a[:observed]
    state.u[:observed] = np.where(covariate, values, logistic(values))
    return state


def logistic(a: Floats) -> Floats:
    """Return 1 / (1 + exp(-a)) without overflow."""
    small = np.exp(-np.abs(a))
    return np.where(a >= 0, 1.0, small) / (1.0 + small)


def enlarge(state: State, spare: int) -> State:
    """Return the state with capacity for `spare` more units: itself, or a copy with at least twice the capacity."""
    capacity, rows = state.a.shape
    if state.size[UNITS] + spare <= capacity:
        return state
    more = max(2 * capacity, int(state.size[UNITS]) + spare)
    wide = {name: np.zeros((more, rows)) for name in ("a", "u", "e")}
    square = {name: np.zeros((more, more), dtype=getattr(state, name).dtype) for name in ("edge", "weight")}
    line = {name: np.zeros(more, dtype=getattr(state, name).dtype) for name in ("theta", "b", "rho", "role", "movable")}
    for name, new in {**wide, **square, **line}.items():
        old = getattr(state, name)
        new[tuple(slice(length) for length in old.shape)] = old
    return state._replace(**wide, **square, **line)


def prior_of(state: State) -> GraphPrior:
    """Return the prior over graphs with the current hyperparameters."""
    alpha, gamma, phi = state.law[: PHI + 1].tolist()
    return GraphPrior(alpha, gamma, phi, PRIORS[state.size[KIND]])


def graph_of(state: State) -> Graph:
    """Return the graph of a state."""
    units = state.size[UNITS]
    return Graph(state.theta[:units].copy(), state.edge[:units, :units].copy(), int(state.size[OBSERVED]))


def residuals(state: State) -> Floats:
    """Recompute the residuals e, shape (K, N); zero for covariates."""
    units = state.size[UNITS]
    weights = np.where(state.edge, state.weight, 0.0)[:units, :units]
    e = state.a[:units] - state.b[:units, None] - weights.T @ state.u[:units]
    return np.where((state.role[:units] == COVARIATE)[:, None], 0.0, e)


def log_joint(state: State) -> float:
    """Return log p(graph, weights, biases, precisions, activations | alpha, gamma, phi), in nats.

    Densities of states with different edges or units have different units and are not comparable.

    Raises
    ------
    DivergenceError
        If a term is not finite; the message names it.
    """
    units = int(state.size[UNITS])
    _, _, _, bias_scale, weight_scale, shape, rate = state.law.tolist()
    proper = state.role[:units] != COVARIATE
    free = proper & (state.role[:units] != FIXED)
    b, rho, e = state.b[:units], state.rho[:units], state.e[:units]
    weights = state.weight[:units, :units][state.edge[:units, :units]]
    gamma_terms = shape * math.log(rate) - math.lgamma(shape) + (shape - 1) * np.log(rho) - rate * rho
    terms = {
        "graph": prior_of(state).log_prob(graph_of(state)),
        "biases": _normal(b[proper], bias_scale),
        "weights": _normal(weights, weight_scale),
        "precisions": float(gamma_terms[free].sum()),
        "activations": float(
            (0.5 * state.a.shape[1] * np.log(rho / (2 * np.pi)) - 0.5 * rho * (e**2).sum(1))[proper].sum()
        ),
    }
    for name, value in terms.items():
        if not math.isfinite(value):
            raise DivergenceError(f"the log density of the {name} is {value} with {units} units")
    return math.fsum(terms.values())


def _normal(values: Floats, scale: float) -> float:
    return float(-0.5 * ((values / scale) ** 2).sum() - len(values) * math.log(scale * math.sqrt(2 * math.pi)))
