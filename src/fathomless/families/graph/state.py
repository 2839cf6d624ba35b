"""The state of a chain over belief networks: a graph, its weights, and the activations of hidden units at every row.

Of unit i at row n, with parents pa(i),

    mu = b_i + sum_k W_ki u_kn,    a_in ~ N(mu, 1 / rho_i),    u_in = 1 / (1 + exp(-a_in)),    e_in = a_in - mu

Arrays have room for more units than there are; those in use come first, the observed ones before the hidden ones. A
removed unit's place is taken by the last one.
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

#: What a unit is: hidden; observed with a precision to infer, or a fixed one; an input of a conditional network.
HIDDEN, FREE, FIXED, COVARIATE = 0, 1, 2, 3

#: Kinds of priors, as :data:`~fathomless.families.graph.priors.PRIORS` lists them.
ICP, CIBP, ECIBP, IBP = range(len(PRIORS))

#: Places in `State.law`, of floats.
ALPHA, GAMMA, PHI, BIAS_SCALE, WEIGHT_SCALE, SHAPE, RATE = range(7)
#: Places in `State.size`, of whole numbers: units in use, observed ones, the kind of the prior.
UNITS, OBSERVED, KIND = range(3)

#: Arrays of double precision.
Floats = NDArray[np.float64]


class State(NamedTuple):
    """A chain's state, with room for C units at N rows.

    Attributes
    ----------
    theta, b, rho : (C,)
        Orders, biases, precisions.
    role, movable : (C,) of int8, of bool
        HIDDEN, FREE, FIXED or COVARIATE; whether the order is inferred.
    edge, weight : (C, C) of bool, of float
        ``edge[k, i]``: k is a parent of i.
    a, u, e : (C, N)
        Activations, outputs, residuals. A covariate has u alone.
    law : (7,)
        alpha, gamma, phi, scales of biases and weights, shape and rate of precisions.
    size : (3,) of int64
        Units K in use, observed units D, which prior.
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

    def copied(self) -> "State":
        """Return a state of its own, with the same values."""
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
    room: int = 32,
) -> State:
    """Return the state without edges and hidden units: biases 0, precisions 1.

    Parameters
    ----------
    values : (D, N)
        Activations of observed units, and covariates as they are.
    orders, roles, movable : (D,)
        Of observed units.
    prior : GraphPrior
        Which one, and where alpha, gamma and phi begin.
    scales, precision
        Scales of biases and weights; shape and rate of precisions.
    room : int
        Units that there is room for, at least.
    """
    observed, rows = values.shape
    room = max(room, observed + 8)
    law = [prior.concentration, prior.mass, prior.popularity, *scales, *precision]
    state = State(
        theta=np.zeros(room),
        b=np.zeros(room),
        rho=np.ones(room),
        role=np.zeros(room, dtype=np.int8),
        movable=np.ones(room, dtype=np.bool_),
        edge=np.zeros((room, room), dtype=np.bool_),
        weight=np.zeros((room, room)),
        a=np.zeros((room, rows)),
        u=np.zeros((room, rows)),
        e=np.zeros((room, rows)),
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
    """Return the state with room for `spare` more units: itself, or a copy with twice the room. Draws nothing."""
    room, rows = state.a.shape
    if state.size[UNITS] + spare <= room:
        return state
    more = max(2 * room, int(state.size[UNITS]) + spare)
    wide = {name: np.zeros((more, rows)) for name in ("a", "u", "e")}
    square = {name: np.zeros((more, more), dtype=getattr(state, name).dtype) for name in ("edge", "weight")}
    line = {name: np.zeros(more, dtype=getattr(state, name).dtype) for name in ("theta", "b", "rho", "role", "movable")}
    for name, new in {**wide, **square, **line}.items():
        old = getattr(state, name)
        new[tuple(slice(length) for length in old.shape)] = old
    return state._replace(**wide, **square, **line)


def prior_of(state: State) -> GraphPrior:
    """Return the prior over graphs with the hyperparameters of now."""
    alpha, gamma, phi = state.law[: PHI + 1].tolist()
    return GraphPrior(alpha, gamma, phi, PRIORS[state.size[KIND]])


def graph_of(state: State) -> Graph:
    """Return the graph as a value."""
    units = state.size[UNITS]
    return Graph(state.theta[:units].copy(), state.edge[:units, :units].copy(), int(state.size[OBSERVED]))


def residuals(state: State) -> Floats:
    """Compute e anew, shape (K, N); zero for covariates."""
    units = state.size[UNITS]
    weights = np.where(state.edge, state.weight, 0.0)[:units, :units]
    e = state.a[:units] - state.b[:units, None] - weights.T @ state.u[:units]
    return np.where((state.role[:units] == COVARIATE)[:, None], 0.0, e)


def log_joint(state: State) -> float:
    """Return log p(graph, weights, biases, precisions, activations | alpha, gamma, phi), in nats.

    Densities of states with other edges or units are in other units: they are not comparable.

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
