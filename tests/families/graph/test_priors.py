"""Priors over graphs: closed forms, a limit, exact draws against an independent program."""

import itertools
import math

import numpy as np
import pytest

from families.graph.finite_model import finite_log_prob, sample_finite
from families.graph.graph_laws import (
    FURTHER,
    FURTHER_ERRORS,
    GRAPHS,
    PLACES,
    REFERENCE,
    SETTINGS,
    distances,
    further,
    statistics,
)
from fathomless.families.graph import simulate
from fathomless.families.graph.graphs import Graph
from fathomless.families.graph.priors import PRIORS, GraphPrior
from fathomless.families.graph.simulate import sample
from fathomless.system.errors import DataError


def draws(prior: GraphPrior, orders: list[float | None], n: int, seed: int = 0, **options: bool) -> list[Graph]:
    generator = np.random.default_rng(seed)
    return [sample(prior, orders, generator, **options) for _ in range(n)]  # type: ignore[arg-type]


def near(values: list[float] | np.ndarray, target: float, errors: float = 4.0) -> None:
    """Compare a mean with its target, in its own standard errors."""
    x = np.asarray(values, dtype=float)
    assert abs(x.mean() - target) < errors * x.std(ddof=1) / math.sqrt(len(x)), (x.mean(), target)


def test_log_prior_matches_published_values() -> None:
    published = {
        "G1": (-1.3, -1.8157106565),
        "G2": (-4.2682399831, -5.6638392539),
        "G3": (-4.6863871637, -6.5911900255),
        "G4": (-4.0653717579, -5.8639536080),
    }
    for name, values in published.items():
        found = [SETTINGS[setting].log_prob(GRAPHS[name]) for setting in "AB"]
        assert found == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_log_prior_is_limit_of_finite_model(name: str, setting: str) -> None:
    prior, graph = SETTINGS[setting], GRAPHS[name]
    gaps = [finite_log_prob(prior, graph, units) - prior.log_prob(graph) for units in (10_000, 100_000)]
    assert 9.9 < gaps[0] / gaps[1] < 10.1
    if (name, setting) == ("G1", "A"):
        assert gaps == pytest.approx([1.055e-4, 1.0550e-5], rel=1e-3)


def test_log_prior_does_not_lose_digits_to_a_large_concentration() -> None:
    """At alpha = 6e7 a hidden unit with one child of three has the factor gamma alpha / (alpha + 2)."""
    prior = GraphPrior(6e7, 0.5)
    graph = Graph.of([0, 0, 0, 0.5], [(3, 0)], 3)
    exposed = 6e7 * 0.5 * (0.5 * sum(1 / (6e7 + r) for r in range(3)) + 0.5 * sum(1 / (6e7 + r) for r in range(4)))
    assert prior.log_prob(graph) == pytest.approx(-exposed + math.log(0.5) - 2 / 6e7, abs=1e-13)


def test_labels_of_hidden_units_do_not_matter() -> None:
    generator = np.random.default_rng(0)
    for prior, orders in itertools.product(SETTINGS.values(), PLACES.values()):
        graph = sample(prior, orders, generator)
        order = [*range(graph.observed), *(graph.observed + generator.permutation(graph.hidden))]
        other = Graph(graph.orders[order], graph.edges[np.ix_(order, order)], graph.observed)
        assert prior.log_prob(other) == pytest.approx(prior.log_prob(graph), abs=1e-12)


@pytest.mark.parametrize(
    ("setting", "at_zero", "random"),
    [
        ("A", [0.36788, 0.28950, 0.17955], [0.63212, 0.22841]),
        ("B", [0.20190, 0.19251, 0.16776], [0.49881, 0.22079]),
    ],
)
def test_probability_of_few_hidden_units(setting: str, at_zero: list[float], random: list[float]) -> None:
    """Densities integrate to these probabilities, and exact draws have them."""
    prior = SETTINGS[setting]
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t, w = (nodes + 1) / 2, weights / 2
    one = sum(wi * math.exp(prior.log_prob(Graph.of([0, ti], [(1, 0)], 1))) for ti, wi in zip(t, w, strict=True))
    two = 0.0
    for (tj, wj), (u, v) in itertools.product(zip(t, w, strict=True), zip(t, w, strict=True)):
        ti = u * tj  # below tj
        for edges in ([(1, 0), (2, 0)], [(1, 0), (2, 1)], [(1, 0), (2, 0), (2, 1)]):
            two += tj * v * wj * math.exp(prior.log_prob(Graph.of([0, ti, tj], edges, 1)))
    assert [math.exp(-prior.mass), one, two] == pytest.approx(at_zero, abs=6e-6)
    for orders, expected in (([0.0], at_zero), ([None], random)):
        hidden = np.array([graph.hidden for graph in draws(prior, orders, 8000)])
        for h, probability in enumerate(expected):
            near(hidden == h, probability)


def test_parents_of_a_unit_are_poisson() -> None:
    prior, where = SETTINGS["B"], 0.3
    found = np.array([graph.edges[3:, 1].sum() for graph in draws(prior, [0.0, where, 0.6], 8000)])
    mean = prior.mass * (1 - where)
    near(found, mean)
    for count in range(4):
        near(found == count, math.exp(-mean) * mean**count / math.factorial(count))


def test_first_level_is_poisson() -> None:
    prior = SETTINGS["B"]
    graphs = draws(prior, [0.0, 0.0, 0.0], 6000)
    first = [graph.edges[3:, :3].any(1) for graph in graphs]
    mean = prior.concentration * prior.mass * sum(1 / (prior.concentration + r) for r in range(3))
    found = np.array([level.sum() for level in first])
    near(found, mean)
    for count in range(4):
        near(found == count, math.exp(-mean) * mean**count / math.factorial(count))
    where = np.concatenate([graph.orders[3:][level] for graph, level in zip(graphs, first, strict=True)])
    near(where, 0.5)
    near((where - 0.5) ** 2, 1 / 12)


def test_observed_pairs_and_input_edges() -> None:
    prior = GraphPrior(1.5, 1.0, 0.8)
    near([graph.edges[:2, :2].any() for graph in draws(prior, [0.2, 0.7], 8000)], 0.8 / 2.3)
    graphs = draws(prior, [1.0, 1.0, 0.0], 8000)
    near([graph.edges[:2, 3:].sum() - 2 * graph.hidden * 0.8 / 2.3 for graph in graphs], 0.0)


@pytest.mark.parametrize("kind", PRIORS)
def test_scores_have_mean_zero(kind: str) -> None:
    """E[H] = alpha gamma E[S], and the density's derivatives by alpha and phi are 0 on average."""
    prior = GraphPrior(1.4, 0.8, 0.6, kind)
    orders: list[float | None] = [None, 0.3, 1.0] if kind == "icp" else [0, 0, 0]
    graphs = draws(prior, orders, 5000)
    near([g.hidden - 1.4 * 0.8 * prior.exposure(g.orders, g.observed) for g in graphs], 0.0)
    step = 1e-4
    up, down = GraphPrior(1.4 + step, 0.8, 0.6, kind), GraphPrior(1.4 - step, 0.8, 0.6, kind)
    near([(up.log_prob(g) - down.log_prob(g)) / (2 * step) for g in graphs], 0.0)
    if kind == "icp":
        up, down = GraphPrior(1.4, 0.8, 0.6 + step), GraphPrior(1.4, 0.8, 0.6 - step)
        near([(up.log_prob(g) - down.log_prob(g)) / (2 * step) for g in graphs], 0.0)


def test_ibp_and_cibp_first_layer() -> None:
    for kind in ("ibp", "cibp"):
        prior = GraphPrior(1.7, 0.9, kind=kind)
        mean = 1.7 * 0.9 * sum(1 / (1.7 + r) for r in range(4))
        first = np.array([(graph.orders == 1).sum() for graph in draws(prior, [0] * 4, 6000)])
        near(first, mean)
        near((first - mean) ** 2, mean)  # Poisson


@pytest.mark.parametrize(
    ("concentration", "mass", "kind", "expected"),
    [
        (1, 0.7, "cibp", (1.856, 2.716, 1.240, 0.277)),
        (1, 0.7, "ecibp", (1.855, 3.974, 1.240, 0.277)),
        (2, 0.9, "cibp", (2.390, 3.086, 1.487, 0.142)),
        (2, 0.9, "ecibp", (2.391, 4.182, 1.489, 0.142)),
    ],
)
def test_layered_priors_match_reference(
    concentration: float, mass: float, kind: str, expected: tuple[float, ...]
) -> None:
    """Given at most 6 hidden units; the last number is P(H = 0) without that."""
    graphs = draws(GraphPrior(concentration, mass, kind=kind), [0, 0, 0], 6000)
    small = [[g.hidden, g.links, g.orders.max()] for g in graphs if g.hidden <= 6]
    assert np.abs(distances(small, [(value, 0.006) for value in expected[:3]])).max() < 4
    near([g.hidden == 0 for g in graphs], expected[3])


@pytest.mark.parametrize(("setting", "places"), REFERENCE)
def test_exact_sampler_matches_reference(setting: str, places: str) -> None:
    prior = SETTINGS[setting]
    graphs = draws(prior, PLACES[places], 8000)
    assert np.abs(distances(map(statistics, graphs), REFERENCE[setting, places])).max() < 4
    others = list(zip(FURTHER[setting, places], FURTHER_ERRORS, strict=True))
    assert np.abs(distances([further(graph, prior) for graph in graphs], others)).max() < 4


@pytest.mark.parametrize(("setting", "places"), REFERENCE)
def test_finite_model_matches_reference(setting: str, places: str) -> None:
    generator = np.random.default_rng(1)
    graphs = [sample_finite(SETTINGS[setting], PLACES[places], 4000, generator) for _ in range(1500)]
    assert np.abs(distances(map(statistics, graphs), REFERENCE[setting, places])).max() < 4


def test_introduction_order_does_not_matter() -> None:
    y = np.array([statistics(g) for g in draws(SETTINGS["B"], [0.0, None, 1.0], 5000, seed=4)])
    for places in ([None, 0.0, 1.0], [1.0, 0.0, None]):
        for breadth_first in (False, True):
            graphs = draws(SETTINGS["B"], places, 5000, seed=3, breadth_first=breadth_first)
            x = np.array([statistics(g) for g in graphs])
            error = np.sqrt(x.var(0) / len(x) + y.var(0) / len(y))
            assert np.abs((x.mean(0) - y.mean(0)) / error).max() < 4


def test_a_binomial_of_observed_pairs_has_another_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """C4: edges among three observed units are Beta-binomial; with independent ones only the mean agrees."""
    kitchen = simulate._GrowingGraph
    draw_is_parent = kitchen.draw_is_parent

    def independent(self: simulate._GrowingGraph, upper: int, seen: int) -> bool:
        if self.observed[upper]:
            return bool(self.generator.random() < 0.5)
        return draw_is_parent(self, upper, seen)

    def spread(seed: int) -> float:
        graphs = draws(SETTINGS["A"], [None] * 3, 12_000, seed)
        return float(np.std([g.edges[:3, :3].sum() for g in graphs]))

    assert spread(0) == pytest.approx(0.959, abs=0.02)
    monkeypatch.setattr(kitchen, "draw_is_parent", independent)
    assert spread(1) < 0.94


def test_each_correction_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting units that wait (C5), or one too few of those served (C6), is another law."""
    kitchen = simulate._GrowingGraph
    up_to = kitchen.count_served_up_to

    def mean(places: str, column: int) -> tuple[float, float]:
        found = np.array([statistics(g)[column] for g in draws(SETTINGS["A"], PLACES[places], 12_000)])
        return float(found.mean()), float(found.std() / math.sqrt(len(found)))

    with monkeypatch.context() as patched:
        patched.setattr(
            kitchen, "count_served_below", lambda self, order: sum(where < order for where in self.heights) - 1
        )
        links, error = mean("F", 1)
        assert abs(links - 3.55) < 4 * error  # as measured by another program
        assert links < REFERENCE["A", "F"][1][0] - 5 * error
    with monkeypatch.context() as patched:
        patched.setattr(kitchen, "count_served_up_to", lambda self, order: max(up_to(self, order) - 1, 0))
        hidden, error = mean("Z3", 0)
        assert hidden > REFERENCE["A", "Z3"][0][0] + 20 * error


def test_classes_of_one_graph_have_one_key() -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        graph = sample(SETTINGS["B"], [None, 0.0], generator)
        order = [0, 1, *(2 + generator.permutation(graph.hidden))]
        other = Graph(graph.orders[order], graph.edges[np.ix_(order, order)], 2)
        assert other.key == graph.key


def test_as_many_keys_as_classes_of_small_graphs() -> None:
    """All graphs of up to three hidden units over two observed ones, sorted into classes by brute force."""
    for hidden in range(4):
        pairs = [(k, i) for k in range(2, 2 + hidden) for i in range(k)]
        classes, keys = set(), set()
        for chosen in itertools.product((False, True), repeat=len(pairs)):
            edges = [pair for pair, taken in zip(pairs, chosen, strict=True) if taken]
            if {k for k, _ in edges} != set(range(2, 2 + hidden)):
                continue
            graph = Graph.of([0, 0, *(0.2 * k for k in range(1, hidden + 1))], edges, 2)
            tables = (
                graph.edges[np.ix_(order, order)].tobytes()
                for rest in itertools.permutations(range(2, 2 + hidden))
                for order in [[0, 1, *rest]]
            )
            classes.add(min(tables))
            keys.add(graph.key)
            assert graph.key_is_exact
        assert len(keys) == len(classes)


def test_graphs_too_alike_for_a_search_say_so() -> None:
    units = 9  # all parents of the one observed unit: 9! relabellings
    graph = Graph.of([0.0, *np.linspace(0.1, 0.9, units)], [(k, 0) for k in range(1, units + 1)], 1)
    assert not graph.key_is_exact
    other = Graph.of([0.0, *np.linspace(0.9, 0.1, units)], [(k, 0) for k in range(1, units + 1)], 1)
    assert other.key == graph.key


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"the edge 0->1 was given with orders 0 and 0\.4; a parent's order must be above"
    ):
        Graph.of([0, 0.4], [(0, 1)], 1)
    with pytest.raises(DataError, match="the hidden unit 1 was given without a child"):
        Graph.of([0, 0.4], [], 1)
    with pytest.raises(DataError, match="0 observed units"):
        Graph.of([0.4], [], 0)
    with pytest.raises(DataError, match="mass=0 was given"):
        GraphPrior(mass=0)
    with pytest.raises(DataError, match="kind='dag' was given; allowed are 'icp'"):
        GraphPrior(kind="dag")
    with pytest.raises(DataError, match=r"orders=1\.5 was given"):
        sample(GraphPrior(), [1.5], np.random.default_rng(0))
    with pytest.raises(DataError, match=r"allowed is 0, for prior='cibp'"):
        sample(GraphPrior(kind="cibp"), [None], np.random.default_rng(0))
    with pytest.raises(DataError, match="more than 50 units; lower the mass"):
        sample(GraphPrior(1, 30.0), [0.0], np.random.default_rng(0), most=50)


def test_what_a_prior_does_not_allow_has_no_density() -> None:
    skips = Graph.of([0, 1, 2], [(1, 0), (2, 0)], 1)  # from the second layer to the observed unit alone
    assert GraphPrior(kind="cibp").log_prob(skips) == GraphPrior(kind="ecibp").log_prob(skips) == -math.inf
    both = Graph.of([0, 1, 2], [(1, 0), (2, 0), (2, 1)], 1)
    assert GraphPrior(kind="cibp").log_prob(both) == GraphPrior(kind="ibp").log_prob(both) == -math.inf
    assert math.isfinite(GraphPrior(kind="ecibp").log_prob(both))
    assert GraphPrior().log_prob(both) == -math.inf  # layers are no orders
