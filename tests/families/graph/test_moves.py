"""Moves of the sampler: closed forms, brute force, inverse pairs, and invariants after every one of them."""

import contextlib
import itertools
import math

import numpy as np
import pytest

from families.graph.graph_laws import GRAPHS, PLACES, REFERENCE, SETTINGS, distances, statistics
from fathomless.families.graph import births, edges, fast, grid, passes
from fathomless.families.graph.engine import Engine, engine
from fathomless.families.graph.graphs import Graph
from fathomless.families.graph.hyper import exposures
from fathomless.families.graph.priors import PRIORS, GraphPrior
from fathomless.families.graph.simulate import sample
from fathomless.families.graph.state import (
    COVARIATE,
    FIXED,
    FREE,
    HIDDEN,
    State,
    empty,
    enlarge,
    graph_of,
    log_joint,
    logistic,
    prior_of,
    residuals,
)
from fathomless.system.errors import DataError

numba = pytest.importorskip("numba", reason="the extra `mcmc` is not installed")


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def moves(request: pytest.FixtureRequest) -> Engine:
    return engine(request.param)


def state_of(graph: Graph, prior: GraphPrior, rows: int, seed: int, role: int = FREE, movable: bool = False) -> State:
    """A state with this graph, everything else drawn from the model; units at order 1 are covariates."""
    generator = np.random.default_rng(seed)
    observed = graph.observed
    roles = np.where(graph.orders[:observed] == 1, COVARIATE, role).astype(np.int8) if prior.kind == "icp" else None
    roles = np.full(observed, role, dtype=np.int8) if roles is None else roles
    state = empty(
        generator.normal(size=(observed, rows)),
        graph.orders[:observed],
        roles,
        prior,
        movable=np.full(observed, movable),
        precision=(3.0, 2.0),
        capacity=len(graph.orders) + 8,
    )
    units = len(graph.orders)
    state.size[0] = units
    state.theta[:units], state.edge[:units, :units] = graph.orders, graph.edges
    state.weight[:units, :units] = np.where(graph.edges, generator.normal(size=(units, units)), 0.0)
    state.b[:units], state.rho[:units] = generator.normal(size=units), generator.gamma(3.0, 0.5, units)
    state.a[observed:units] = generator.normal(size=(graph.hidden, rows)) * 1.5
    state.u[observed:units] = logistic(state.a[observed:units])
    state.e[:units] = residuals(state)
    return state


def random_states(count: int, rows: int, kinds: tuple[str, ...] = PRIORS, role: int = FREE) -> list[State]:
    generator = np.random.default_rng(7)
    states = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        prior = GraphPrior(*generator.uniform(0.5, 1.5, 3), kind)
        places = [[None, 0.3], [0, 0, 0], [1, 1, 0]][number % 3] if kind == "icp" else [0, 0]
        with contextlib.suppress(DataError):  # layers have heavy tails
            states.append(state_of(sample(prior, places, generator, most=20), prior, rows, number, role))
    return states


def sweep(
    moves: Engine, state: State, generator: np.random.Generator, births: tuple[bool, ...] = (False, True)
) -> State:
    state = enlarge(state, len(births))
    gram, cross = moves.compute_products(state)
    moves.draw_edges(state, gram, cross, generator)
    moves.draw_precisions(state, generator)
    moves.try_births_and_deaths(state, np.array(births) & (state.size[2] == 0), 40, -1, generator)
    moves.slice_pass(state, generator)
    moves.elliptical_pass(state, generator)
    moves.draw_orders(state, generator)
    return state


def test_local_ratio_equals_full_difference() -> None:
    """Inserting a unit with one child, alone or with parents of its own, changes the log prior by what is claimed."""
    generator = np.random.default_rng(0)
    checked = 0
    for state in random_states(2000, 0):
        prior, graph = prior_of(state), graph_of(state)
        units = len(graph.orders)
        child = int(generator.integers(graph.observed if prior.kind == "ibp" else units))
        if prior.kind == "icp" and graph.orders[child] == 1:
            continue
        order = generator.uniform(graph.orders[child], 1) if prior.kind == "icp" else graph.orders[child] + 1
        children, below = edges.count_links(state, -1)
        above = np.flatnonzero(graph.orders > order)
        parents = above[generator.random(len(above)) < 0.5] if prior.kind == "icp" else above[:0]
        extra = np.where(np.arange(units) < graph.observed, prior.popularity if prior.kind == "icp" else 0.0, 0.0)
        p = (children + extra) / (prior.concentration + below + extra)
        expected = births.log_insertion(state, order, children, below, -1, True)
        expected += sum(math.log(p[c] / (1 - p[c])) for c in parents)
        without = births.log_insertion(state, order, children, below, -1, False)
        eligible = above if prior.kind in ("icp", "ecibp") else np.flatnonzero(graph.orders == order + 1)
        if prior.kind != "ibp":
            assert without + np.log1p(-p[eligible]).sum() == pytest.approx(
                births.log_insertion(state, order, children, below, -1, True), abs=1e-12
            )
        table = np.zeros((units + 1, units + 1), dtype=bool)
        table[:units, :units] = graph.edges
        table[units, child] = True
        table[parents, units] = True
        larger = Graph(np.append(graph.orders, order), table, graph.observed)
        assert prior.log_prob(larger) - prior.log_prob(graph) == pytest.approx(expected, abs=1e-12)
        checked += 1
    assert checked > 1500


def test_birth_into_a_known_graph_has_its_published_ratio() -> None:
    for setting, orphan, structural in (("A", -1.9067594692, -2.1299030206), ("B", -0.9110269007, -1.1341704520)):
        state = state_of(GRAPHS["G2"], SETTINGS[setting], 0, 0)
        children, below = edges.count_links(state, -1)
        assert births.log_insertion(state, 0.5, children, below, -1, True) == pytest.approx(orphan, abs=1e-9)
        larger = Graph.of([0, 0, 0.3, 0.8, 0.5], [(2, 0), (2, 1), (3, 2), (3, 1), (4, 0)], 2)
        state = state_of(larger, SETTINGS[setting], 0, 0)
        assert births._log_graph_ratio(state, 4, 0, False) == pytest.approx(structural, abs=1e-9)


@pytest.mark.parametrize("role", [FREE, FIXED])
def test_birth_then_death_restores_the_state(role: int) -> None:
    """And the two ratios are inverse, with parents and without, for every prior."""
    generator = np.random.default_rng(1)
    done = 0
    for state in random_states(400, 6, role=role):
        icp = state.size[2] == 0
        with_parents = bool(icp and done % 2)
        child = int(generator.integers(state.size[1] if state.size[2] == 3 else state.size[0]))
        before = state.copy()
        if icp and state.theta[child] >= 1:
            continue
        newborn = births.add_unit(state, child, with_parents, generator)
        there = births.evaluate_change(state, newborn, child, with_parents, 40, True, generator)
        if math.isnan(there.log_ratio):
            continue
        births.apply_birth(state, newborn, child, there)
        assert np.abs(residuals(state) - state.e[: state.size[0]]).max() < 1e-9
        assert newborn in births.find_removable(state, child, with_parents)
        back = births.evaluate_change(state, newborn, child, with_parents, 40, False, generator)
        assert back.log_ratio == pytest.approx(there.log_ratio, abs=1e-9, rel=1e-9)
        births.apply_death(state, newborn, child, back)
        units = state.size[0]
        for name in ("theta", "edge", "weight", "size", "law"):
            assert np.array_equal(getattr(state, name), getattr(before, name)) or name == "theta"
        assert np.array_equal(state.theta[:units], before.theta[:units])
        for name in ("b", "rho", "e", "a", "u"):
            assert getattr(state, name)[:units] == pytest.approx(getattr(before, name)[:units], rel=1e-10, abs=1e-10)
        done += 1
    assert done > 250


def test_guards_hold_both_ways() -> None:
    """A newborn whose precision is below the guard is refused, and one that came there by another move stays."""
    state = state_of(GRAPHS["G2"], SETTINGS["A"], 4, 0)
    state.rho[3] = 1e-9
    state.edge[3, 1] = False  # a singleton orphan
    state.e[:4] = residuals(state)
    change = births.evaluate_change(state, 3, 2, False, 40, False, np.random.default_rng(0))
    assert math.isnan(change.log_ratio)
    state.rho[3] = 1e-7
    assert math.isfinite(births.evaluate_change(state, 3, 2, False, 40, False, np.random.default_rng(0)).log_ratio)


def test_moment_match_jacobian() -> None:
    """|d(W, rho', b') / d(f, rho, b)| = |W| / (2 f (1 - f)^2), and the child keeps its mean and variance."""
    s, v = 0.4, 0.03

    def forward(x: np.ndarray) -> np.ndarray:
        f, rho, b = x
        weight = math.sqrt(f / (rho * v))
        return np.array([weight, rho / (1 - f), b - weight * s])

    for f, rho, b in ((0.3, 2.0, 0.5), (0.9, 0.4, -1.0), (0.05, 30.0, 0.0)):
        x = np.array([f, rho, b])
        steps = np.diag(x * 1e-5 + 1e-7)
        jacobian = np.stack([(forward(x + h) - forward(x - h)) / (2 * h.sum()) for h in steps])
        weight, new_rho, new_b = forward(x)
        assert abs(np.linalg.det(jacobian)) == pytest.approx(weight / (2 * f * (1 - f) ** 2), rel=1e-6)
        assert 1 / new_rho + weight**2 * v == pytest.approx(1 / rho, rel=1e-12)
        assert new_b + weight * s == pytest.approx(b, abs=1e-12)


@pytest.mark.parametrize("weight", [0.3, -4.0, 30.0])
def test_grid_proposal_is_a_density(weight: float) -> None:
    """The log weight of noise z is log target(z) - log q(z): q integrates to one."""
    both, centre, rho, rho_child = 0.7, 0.4, 0.5, 6.0
    _, _, table = grid.grid_moments(np.array([centre]), centre, rho, 40, True)

    def density(z: float) -> float:
        gap = both - weight * logistic(np.array(centre + z / math.sqrt(rho)))
        log_target = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) - 0.5 * rho_child * gap**2
        one = np.array([z])
        log_weight = grid.weigh_activations(np.array([both]), weight, np.array([centre]), rho, rho_child, table, one)
        return float(np.exp(log_target - log_weight))

    total = 0.0
    for low, high, many in ((-9.0, -4.5 - 1e-9, 400), (-4.5, 4.5 - 1e-9, 40 * 40), (4.5, 9.0, 400)):
        z = np.linspace(low, high, many + 1)
        total += np.trapezoid([density(x) for x in z], z)
    assert total == pytest.approx(1, abs=1e-6)


def test_grid_proposal_is_drawn_from(moves: Engine) -> None:
    """Means of the inverse weights are one: E_q[target / q] is the integral of the target, by quadrature."""
    rows = 20_000
    draw = grid.draw_activations if moves.name == "numpy" else numba.njit(grid.draw_activations_loop)
    for weight, both in ((3.0, 1.5), (-8.0, -2.0)):
        centre, rho, rho_child = 0.3, 0.8, 5.0
        _, _, table = grid.grid_moments(np.array([centre]), centre, rho, 60, True)
        noise = np.empty(rows)
        draw(np.full(rows, both), weight, np.full(rows, centre), rho, rho_child, table, noise, np.random.default_rng(0))
        z = np.linspace(-8, 8, 40_001)
        target = np.exp(-0.5 * z**2 - 0.5 * rho_child * (both - weight * logistic(centre + z / math.sqrt(rho))) ** 2)
        cumulative = 0.98 * np.cumsum(np.where(np.abs(z) < 4.5, target, 0))
        cumulative /= cumulative[-1] / 0.98
        cumulative += 0.02 * np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
        expected = np.interp(np.sort(noise), z, cumulative)
        distance = np.abs(expected - (np.arange(rows) + 0.5) / rows).max()
        assert distance < 1.95 / math.sqrt(rows) + 2e-3  # Kolmogorov at 0.1 %, and what linear cells lack


def test_collapsed_edge_matches_brute_force() -> None:
    """The published numbers, the N-variate Gaussian, and the odds that the Gibbs move draws with."""
    a = np.array([0.3, -1.2, 0.8, 0.1, -0.4])
    u = np.array([[0.2, 0.9, 0.4, 0.6, 0.7], [0.5, 0.1, 0.3, 0.8, 0.2]])

    def gaussian(parents: list[int], rho: float = 2.0) -> float:
        x = np.vstack([np.ones(5), u[parents]])
        covariance = x.T @ x + np.eye(5) / rho
        _, logdet = np.linalg.slogdet(2 * np.pi * covariance)
        return float(-0.5 * logdet - 0.5 * a @ np.linalg.solve(covariance, a))

    offset = 2.5 * math.log(2 / (2 * math.pi)) - (a @ a)
    expected = {(): -1.1698567, (0,): -0.9334636, (0, 1): -1.0464112}
    for parents, value in expected.items():
        assert gaussian(list(parents)) - offset == pytest.approx(value, abs=1e-6)

    graph = Graph.of([0, 0, 0, 0.5, 0.6], [(3, 0), (4, 1)], 3)
    taken = {0: 0, 1: 0, 2: 0, 3: 0}
    many = 10_000
    state = state_of(graph, GraphPrior(1, 1, 1), 5, 0)
    state.a[0], state.u[3:5] = a, u
    state.a[3:5] = np.log(u / (1 - u))
    gram, cross = passes.compute_products(state)
    generator = np.random.default_rng(0)
    children, below = np.array([0, 0, 0, 2, 2]), np.array([0, 0, 0, 3, 4])
    moved = engine("compiled").draw_edges  # the whole phase: only unit 0's parents are looked at
    log_odds = {}
    for parents in itertools.chain.from_iterable(itertools.combinations((0, 1), r) for r in range(3)):
        prior = 0.0
        for k in (0, 1):
            p = 1 / (1 + below[3 + k] - 1)  # one other child each
            prior += math.log(p) if k in parents else math.log1p(-p)
        log_odds[parents] = prior + gaussian(list(parents))
    total = np.logaddexp.reduce(list(log_odds.values()))
    state.edge[3, 1] = state.edge[3, 2] = True  # the others keep both units alive, and stay
    state.edge[4, 1] = True
    del children, moved, taken
    counts = dict.fromkeys(log_odds, 0)
    for _ in range(many):
        m, d = edges.count_links(state, -1)
        m[3:5] = 1 + state.edge[3:5, 0]
        state.rho[0] = 2.0
        edges._draw_parents(state, 0, gram, cross, m, d, generator)
        counts[tuple(k for k in (0, 1) if state.edge[3 + k, 0])] += 1
    for parents, count in counts.items():
        p = math.exp(log_odds[parents] - total)
        assert abs(count / many - p) < 5 * 2 * math.sqrt(p * (1 - p) / many)  # Gibbs sweeps are not independent


def test_order_gibbs_matches_quadrature(moves: Engine) -> None:
    """The published probabilities, and the density along the whole interval with observed units inside."""
    larger = Graph.of([0, 0, 0.3, 0.8, 0.5], [(2, 0), (2, 1), (3, 2), (3, 1), (4, 0)], 2)
    for setting, expected in (("A", 0.7472620), ("B", 0.6276665)):
        prior = SETTINGS[setting]

        def density(where: float, prior: GraphPrior = prior) -> float:
            return math.exp(prior.log_prob(Graph(np.array([0, 0, where, 0.8, 0.5]), larger.edges, 2)))

        nodes, weights = np.polynomial.legendre.leggauss(40)
        low = sum(w * density(0.25 + 0.25 * x) * 0.25 for x, w in zip(nodes, weights, strict=True))
        high = sum(w * density(0.65 + 0.15 * x) * 0.15 for x, w in zip(nodes, weights, strict=True))
        assert low / (low + high) == pytest.approx(expected, abs=1e-6)
        state = state_of(larger, prior, 0, 0)
        state.movable[3:5] = False
        generator = np.random.default_rng(0)
        found = np.empty(8000)
        for n in range(len(found)):
            moves.draw_orders(state, generator)
            found[n] = state.theta[2]
        assert abs((found < 0.5).mean() - expected) < 4 * math.sqrt(expected * (1 - expected) / len(found))
        assert found.min() > 0
        assert found.max() < 0.8
        grid_points = np.linspace(0, 0.8, 33)
        integral = np.array([density(x + 0.0125) for x in grid_points[:-1]])
        share = np.histogram(found, grid_points)[0] / len(found)
        expected_share = integral / integral.sum()
        assert np.abs(share - expected_share).max() < 5 * math.sqrt(expected_share.max() / len(found))


def test_invariants_after_every_move(moves: Engine) -> None:
    """Hidden units have children, edges go down, what is fixed stays, residuals are those of the weights."""
    generator = np.random.default_rng(3)
    for state in random_states(24, 5):
        fixed = state.theta[: state.size[1]].copy()
        for _ in range(12):
            state = sweep(moves, state, generator, (True, False, True))
            graph = graph_of(state)  # refuses childless units and edges that go up
            assert math.isfinite(prior_of(state).log_prob(graph))
            movable = state.movable[: state.size[1]]
            assert np.array_equal(state.theta[: state.size[1]][~movable], fixed[~movable])
            units = state.size[0]
            assert np.abs(residuals(state) - state.e[:units]).max() < 1e-8
            hidden = state.role[:units] == HIDDEN
            assert state.u[:units][hidden] == pytest.approx(logistic(state.a[:units][hidden]), abs=1e-12)
            assert not state.weight[:units, :units][~state.edge[:units, :units]].any()
            assert math.isfinite(log_joint(state))
            lengths = exposures(state)
            psi = np.cumsum(1 / (state.law[0] + np.arange(units)))
            assert lengths[1:] @ psi == pytest.approx(prior_of(state).exposure(graph.orders, graph.observed))


def prior_chains(moves: Engine, setting: str, places: str, births: tuple[bool, ...]) -> np.ndarray:
    """Distances of twelve chains of the whole sampler without data from the prior's law, in standard errors."""
    prior, wanted = SETTINGS[setting], PLACES[places]
    random_order = np.array([place is None for place in wanted])
    at = np.array([0.3 + 0.2 * k if place is None else place for k, place in enumerate(wanted)])
    role = np.where(at == 1, COVARIATE, FREE).astype(np.int8)
    means = []
    for chain in range(12):
        generator = np.random.default_rng(chain)
        state = empty(np.zeros((len(at), 0)), at, role, prior, movable=random_order)
        kept = []
        for step in range(330):
            state = sweep(moves, state, generator, births)
            if step >= 60 and step % 3 == 0:
                kept.append(statistics(graph_of(state)))
        means.append([float(value) for value in np.mean(kept, 0)])
    return distances(means, REFERENCE[setting, places])


@pytest.mark.parametrize("with_parents", [False, True])
@pytest.mark.parametrize(("setting", "places"), REFERENCE)
def test_prior_chain_matches_reference(setting: str, places: str, with_parents: bool) -> None:
    """Chains with errors of their own against an independent program; Student's law has 11 degrees of freedom."""
    assert np.abs(prior_chains(engine("compiled"), setting, places, (with_parents,) * 8)).max() < 5


def test_metropolis_orders_have_the_same_law_and_upside_down_another() -> None:
    """C11: the ratio of a uniform proposal is new over old. Unit 2 of the graph with the published probability."""
    larger = Graph.of([0, 0, 0.3, 0.8, 0.5], [(2, 0), (2, 1), (3, 2), (3, 1), (4, 0)], 2)
    prior, many = SETTINGS["A"], 8000
    for sign in (1, -1):
        generator, graph, found = np.random.default_rng(0), larger, np.empty(many)
        for n in range(many):
            where = graph.orders.copy()
            where[2] = generator.uniform(0, 0.8)
            new = Graph(where, graph.edges, 2)
            if math.log(1 - generator.random()) < sign * (prior.log_prob(new) - prior.log_prob(graph)):
                graph = new
            found[n] = graph.orders[2]
        distance = abs((found < 0.5).mean() - 0.7472620) / math.sqrt(0.25 / many)
        assert distance < 5 if sign == 1 else distance > 10


def test_hyperparameters_follow_their_conditionals(moves: Engine) -> None:
    """Of a fixed graph: against quadrature in log alpha and log phi, and the Gamma law of gamma."""
    graph, priors = GRAPHS["G3"], np.array([[2.0, 1.5], [3.0, 2.0], [1.5, 1.0]])
    generator = np.random.default_rng(0)
    state = state_of(graph, GraphPrior(), 0, 0)
    kept = np.empty((6000, 3))
    for n in range(len(kept)):
        moves.draw_hyperparameters(state, priors, True, generator)
        kept[n] = state.law[:3]
    logs = np.linspace(-5, 5, 26)
    alpha, gamma, phi = np.exp(np.stack(np.meshgrid(logs, logs, logs, indexing="ij"))).reshape(3, -1)
    target = np.array([GraphPrior(*law).log_prob(graph) for law in zip(alpha, gamma, phi, strict=True)])
    target += -2.0 * np.log(alpha) - 1.5 / alpha + 3 * np.log(gamma) - 2 * gamma + 1.5 * np.log(phi) - phi
    weight = np.exp(target - target.max())
    weight /= weight.sum()
    for column, values in enumerate((alpha, gamma, phi)):
        x = np.log(kept[:, column])
        mean, second = weight @ np.log(values), weight @ np.log(values) ** 2
        batches = x.reshape(30, -1).mean(1)
        assert abs(x.mean() - mean) < 4.5 * batches.std(ddof=1) / math.sqrt(30)
        assert x.var() == pytest.approx(second - mean**2, rel=0.15)


def test_loops_and_rows_agree() -> None:
    """The two versions of functions without random draws return the same numbers."""
    for state in random_states(20, 37):
        for one, other in zip(passes.compute_products(state), passes.compute_products_loop(state), strict=True):
            assert one == pytest.approx(other, rel=1e-12, abs=1e-12)
        units = state.size[0]
        unit = int(units - 1)
        centre = state.a[unit]
        for orphan in (False, True):
            one = grid.grid_moments(centre, 0.3, 0.7, 40, orphan)
            other = grid.grid_moments_loop(centre, 0.3, 0.7, 40, orphan)
            assert one[:2] == pytest.approx(other[:2], rel=1e-10)
            assert one[2] == pytest.approx(other[2], rel=1e-10)
            noise = state.e[unit]
            args = (state.e[0], 1.7, centre, 0.7, 3.0, one[2], noise)
            assert grid.weigh_activations(*args) == pytest.approx(grid.weigh_activations_loop(*args), rel=1e-9)


def test_fast_exponential_is_exact_to_rounding() -> None:
    x = np.concatenate(
        [np.random.default_rng(0).uniform(-700, 700, 20_000), np.linspace(-1, 1, 2001), [0.0, -1e4, 1e4]]
    )
    expected = np.exp(np.clip(x, -708, 708))
    y = x.copy()
    fast.exponentiate(y, np.empty_like(y))
    assert np.abs(y / expected - 1).max() < 1e-13
    compiled = numba.njit(fast.exponentiate)
    z = x.copy()
    compiled(z, np.empty_like(z))
    assert np.array_equal(y, z)


@pytest.mark.parametrize("of", ["sigmoids", "add_scaled", "rank"])
def test_short_functions_and_their_loops_agree(of: str) -> None:
    generator = np.random.default_rng(0)
    one, other = getattr(fast, of), getattr(fast, f"{of}_loop")
    for length in (0, 1, 2, 37):
        x, y = generator.normal(size=(2, length)) * 300
        if of == "rank":  # equal elements keep their order
            x = np.round(x, -2)
            assert np.array_equal(one(x, length), other(x, length))
            continue
        a, b = x.copy(), x.copy()
        one(*((y, a, x) if of == "sigmoids" else (a, 0.7, y)))
        other(*((y, b, x) if of == "sigmoids" else (b, 0.7, y)))
        assert a == pytest.approx(b, rel=1e-12)


def test_an_engine_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="engine='gpu' was given; allowed are 'auto'"):
        engine("gpu")
    monkeypatch.setattr("fathomless.families.graph.engine.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'fathomless\[mcmc\]'"):
        engine("compiled")
    assert engine().name == "numpy"


def test_moves_of_hidden_activations_keep_their_target(moves: Engine) -> None:
    """One hidden unit with two children at one row: against quadrature, for either pass and both together."""
    graph = Graph.of([0, 0, 0.5], [(2, 0), (2, 1)], 2)
    state = state_of(graph, SETTINGS["A"], 1, 3)
    state.weight[2, :2], state.rho[:3] = [2.0, -3.0], [3.0, 1.5, 0.4]
    state.e[:3] = residuals(state)
    start = state.copy()
    a = np.linspace(-20, 20, 20_001)
    gaps = state.a[:2] - state.b[:2, None] - state.weight[2, :2][:, None] * logistic(a)
    target = np.exp(-0.2 * (a - state.b[2]) ** 2 - 0.5 * state.rho[:2] @ gaps**2)
    target /= target.sum()
    for passes_of in (("slice_pass",), ("elliptical_pass",), ("slice_pass", "elliptical_pass")):
        state = start.copy()
        generator, found = np.random.default_rng(0), np.empty(4000)
        for n in range(len(found)):
            for name in passes_of:
                getattr(moves, name)(state, generator)
            found[n] = state.a[2, 0]
        for power in (1, 2):
            values = np.tanh(found / 3) ** power
            batches = values.reshape(40, -1).mean(1)
            expected = target @ np.tanh(a / 3) ** power
            assert abs(values.mean() - expected) < 4.5 * batches.std(ddof=1) / math.sqrt(40)
        assert np.abs(residuals(state) - state.e[:3]).max() < 1e-10
