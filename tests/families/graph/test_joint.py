"""The sampler and the model have one joint law of graphs, weights, activations and data; what breaks it is seen."""

import math
from dataclasses import replace

import numpy as np
import pytest

from families.graph.graph_laws import PLACES
from fathomless.families.graph.engine import Engine, engine
from fathomless.families.graph.priors import GraphPrior
from fathomless.families.graph.probit import latent_pass
from fathomless.families.graph.simulate import sample
from fathomless.families.graph.state import COVARIATE, FIXED, FREE, HIDDEN, State, empty, enlarge, graph_of, logistic
from fathomless.inference.mcmc.joint import JointTest, joint_distribution_test

pytest.importorskip("numba", reason="the extra `mcmc` is not installed")

ROWS, PRECISION = 4, (3.0, 2.0)
HYPER = np.array([[4.0, 4.0]] * 3)  # of 1 / alpha, gamma and phi


def drawn(prior: GraphPrior, places: list[float | None], role: int, generator: np.random.Generator) -> State:
    """A state from the model: graph, weights, and activations from above to below."""
    graph = sample(prior, places, generator, most=200)
    units, observed = len(graph.orders), graph.observed
    at = graph.orders[:observed]
    roles = np.where((at == 1) & (prior.kind == "icp"), COVARIATE, role).astype(np.int8)
    movable = np.array([place is None for place in places])
    values = generator.normal(size=(observed, ROWS))
    state = empty(values, at, roles, prior, movable=movable, precision=PRECISION, capacity=units + 8)
    state.size[0] = units
    state.theta[:units], state.edge[:units, :units] = graph.orders, graph.edges
    state.weight[:units, :units] = np.where(graph.edges, generator.normal(size=(units, units)), 0.0)
    state.b[:units], state.rho[:units] = generator.normal(size=units), generator.gamma(3.0, 0.5, units)
    state.rho[:observed][roles == FIXED] = 1.0
    pass_down(state, generator, hidden=True)
    return state


def pass_down(state: State, generator: np.random.Generator, hidden: bool) -> None:
    """Draw activations given those above: of all units, or of the observed ones alone."""
    units = state.size[0]
    for unit in np.argsort(-state.theta[:units], kind="stable"):
        if state.role[unit] == COVARIATE or (state.role[unit] == HIDDEN and not hidden):
            continue
        mean = state.b[unit] + state.weight[:units, unit] @ state.u[:units]
        state.e[unit] = generator.normal(size=ROWS) / math.sqrt(state.rho[unit])
        state.a[unit] = mean + state.e[unit]
        state.u[unit] = logistic(state.a[unit])


def classes(state: State) -> np.ndarray:
    """Return the classes given by the latent outputs; correct moves do not change them."""
    outputs = state.a[: state.size[1]][state.role[: state.size[1]] == FIXED]
    return outputs.argmax(0) if len(outputs) > 1 else (outputs[0] > 0).astype(np.int64)


def describe(state: State) -> dict[str, float]:
    units, observed = state.size[0], state.size[1]
    graph = graph_of(state)
    proper = state.role[:units] != COVARIATE
    hidden = state.role[:units] == HIDDEN
    soft = np.tanh(state.a[:units] / 3)
    return {
        "hidden": graph.hidden,
        "hidden squared": graph.hidden**2,
        "edges": graph.links,
        "orphans": graph.orphans,
        "weights squared": float((state.weight[:units, :units] ** 2).sum()),
        "outputs": float(state.u[:units][hidden].sum()),
        "log precisions": float(np.log(state.rho[:units][proper]).sum()),
        "biases": float(state.b[:observed].sum()),
        "biases squared": float((state.b[:units] ** 2).sum()),
        "data": float(soft[:observed].mean()),
        "data squared": float((soft[:observed] ** 2).mean()),
        "activations squared": float((soft[hidden] ** 2).sum()),
        "pair": float((soft[0] * soft[1]).mean()),
        "orders": float(state.theta[observed:units].sum()),
        "log alpha": float(np.log(state.law[0])),
        "log gamma": float(np.log(state.law[1])),
        "log phi": float(np.log(state.law[2])),
    }


def joint(
    births: tuple[bool, ...],
    places: str = "two",
    kind: str = "icp",
    role: int = FREE,
    free: bool = False,
    chains: int = 16,
    draws: int = 120,
    moves: Engine | None = None,
    sweeps: int = 4,
    probit: bool = False,
) -> JointTest:
    more: dict[str, list[float | None]] = {"two": [0, 0], "forward": [1, 0], "classes": [1, 0, 0, 0]}
    at = {**PLACES, **more}[places]
    moves = engine("compiled") if moves is None else moves
    fixed = GraphPrior(1.2, 0.9, 0.7, kind)

    def forward(generator: np.random.Generator) -> State:
        prior = fixed
        if free:
            alpha, gamma, phi = generator.gamma(4, 1 / 4, 3)
            prior = GraphPrior(1 / alpha, gamma, phi, kind)
        return drawn(prior, at, role, generator)

    def transition(state: State, generator: np.random.Generator) -> State:
        for _ in range(sweeps):
            state = enlarge(state, len(births))
            gram, cross = moves.compute_products(state)
            moves.draw_edges(state, gram, cross, generator)
            moves.draw_precisions(state, generator)
            moves.try_births_and_deaths(state, np.array(births), 20, -1, generator)
            moves.slice_pass(state, generator)
            moves.elliptical_pass(state, generator)
            moves.draw_orders(state, generator)
            if probit:
                latent_pass(state, classes(state), generator)
            if free:
                moves.draw_hyperparameters(state, HYPER, places != "two", generator)
        return state

    def redraw(state: State, generator: np.random.Generator) -> State:
        pass_down(state, generator, hidden=False)
        return state

    return joint_distribution_test(
        forward, transition, redraw, describe, chains, draws, np.random.default_rng(5), forward_draws=4 * draws
    )


CASES: dict[str, dict[str, object]] = {
    "orphans": {"births": (False, False)},
    "parents": {"births": (True, True)},
    "mixed": {"births": (False, True), "free": True, "chains": 24},
    "forward": {"births": (False, True), "places": "forward"},
    "fixed precision": {"births": (False, True), "places": "forward", "role": FIXED},
    "fixed outputs": {"births": (False, False), "role": FIXED},
    "two classes": {"births": (False, True), "places": "forward", "role": FIXED, "probit": True},
    "three classes": {"births": (False, True), "places": "classes", "role": FIXED, "probit": True},
    "cibp": {"births": (False, False), "kind": "cibp"},
    "ecibp": {"births": (False, False), "kind": "ecibp"},
    "ibp": {"births": (False, False), "kind": "ibp"},
}


@pytest.mark.parametrize("case", CASES)
def test_joint_distribution(case: str) -> None:
    found = joint(**CASES[case])  # type: ignore[arg-type]
    assert found.p > 0.001, f"\n{found}"


def test_joint_distribution_of_the_engine_in_numpy() -> None:
    found = joint((False, True), moves=engine("numpy"), chains=8, draws=60, sweeps=2)
    assert found.p > 0.001, f"\n{found}"


def test_missing_removability_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaths that leave a hidden unit without children end in what is no graph."""

    def careless(state: State, child: int, with_parents: bool) -> np.ndarray:
        units = state.size[0]
        alone = [k for k in range(state.size[1], units) if state.edge[k, child] and state.edge[k].sum() == 1]
        return np.array([k for k in alone if with_parents or not state.edge[:units, k].any()], dtype=np.int64)

    monkeypatch.setattr("fathomless.families.graph.births.find_removable", careless)
    with pytest.raises(Exception, match="without a child"):
        joint((True, True), moves=engine("numpy"), chains=10, draws=60)


def test_one_sided_guard_is_caught() -> None:
    """Refusing births of imprecise units, but not their deaths, loses hidden units."""
    moves = engine("compiled")

    def one_sided(state: State, with_parents: np.ndarray, *rest: object) -> None:
        for attempt in range(len(with_parents)):
            before = state.copy()
            done = moves.try_births_and_deaths(state, with_parents[attempt : attempt + 1], *rest)
            if done == 1 and state.rho[state.size[0] - 1] < 1.2:
                for part, old in zip(state, before, strict=True):
                    part[:] = old

    assert joint((False, False), moves=replace(moves, try_births_and_deaths=one_sided)).p < 0.001
