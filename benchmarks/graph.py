"""Infinite networks: milliseconds of every move with compiled code and with NumPy, and seconds of compilation.

    python benchmarks/graph.py             moves at four sizes, then cold and cached compilation
    python benchmarks/graph.py moves       one of these
    python benchmarks/graph.py compiling

Every move is timed on copies of one state drawn from the model, with both engines in one process on one thread. The
mean without the slowest tenth is reported, because the amount of work of a move varies. A sweep is that of
`GraphSampler.sweep`: products of rows, edges, precisions, four births or deaths, both passes over activations, orders,
and hyperparameters.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from fathomless.families.graph.engine import Engine, engine
from fathomless.families.graph.priors import GraphPrior
from fathomless.families.graph.sampler import count_cells
from fathomless.families.graph.state import FREE, State, empty, logistic, residuals

SIZES = ((4, 8, 100, 19), (2, 6, 500, 8), (12, 12, 1000, 82), (12, 25, 2000, 232))  # D, H, N, edges
REPEATS = {"compiled": 60, "numpy": 10}
HYPER = np.full((3, 2), 0.5)


def network(observed: int, hidden: int, rows: int, links: int) -> State:
    """Draw a state whose graph has about `links` edges, with activations drawn from the top to the bottom."""
    generator = np.random.default_rng(0)
    units = observed + hidden
    prior = GraphPrior()
    roles = np.full(observed, FREE, dtype=np.int8)
    state = empty(np.zeros((observed, rows)), np.zeros(observed), roles, prior, capacity=units + 8)
    state.size[0] = units
    state.theta[observed:units] = np.sort(generator.random(hidden))
    for unit in range(observed, units):
        state.edge[unit, generator.integers(unit)] = True
    pairs = [(k, i) for k in range(observed, units) for i in range(k) if not state.edge[k, i]]
    for place in generator.permutation(len(pairs))[: max(links - hidden, 0)]:
        state.edge[pairs[place]] = True
    table = state.edge[:units, :units]
    state.weight[:units, :units] = np.where(table, generator.normal(size=(units, units)), 0.0)
    state.b[:units] = generator.normal(size=units)
    state.rho[:units] = generator.gamma(2.0, 1.0, units)
    for unit in range(units - 1, -1, -1):
        noise = generator.normal(size=rows) / np.sqrt(state.rho[unit])
        state.a[unit] = state.b[unit] + state.weight[:units, unit] @ state.u[:units] + noise
        state.u[unit] = logistic(state.a[unit])
    state.e[:units] = residuals(state)
    return state


def moves(of: Engine, rows: int) -> dict[str, tuple[int, Callable[[State, np.random.Generator], object]]]:
    """Return every move with the number of its uses in a sweep."""
    cells = count_cells(rows)

    def edges(state: State, generator: np.random.Generator) -> object:
        return of.draw_edges(state, *of.compute_products(state), generator)

    return {
        "edges": (1, edges),
        "precisions": (1, of.draw_precisions),
        "orphans": (2, lambda s, g: of.try_births_and_deaths(s, np.array([False]), cells, -1, g)),
        "parents": (2, lambda s, g: of.try_births_and_deaths(s, np.array([True]), cells, -1, g)),
        "slice": (1, of.slice_pass),
        "elliptical": (1, of.elliptical_pass),
        "orders": (1, of.draw_orders),
        "hyper": (1, lambda s, g: of.draw_hyperparameters(s, HYPER, False, g)),
    }


def milliseconds(move: Callable[[State, np.random.Generator], object], state: State, repeats: int) -> float:
    generator = np.random.default_rng(1)
    found = []
    for _ in range(repeats + 1):
        own = state.copy()
        start = time.perf_counter()
        move(own, generator)
        found.append(time.perf_counter() - start)
    return 1e3 * float(np.mean(sorted(found[1:])[: max(1, int(0.9 * repeats))]))


def table() -> None:
    engines = [engine(name) for name in ("compiled", "numpy")]
    names = list(moves(engines[0], 1))
    print("milliseconds, compiled / NumPy")
    print(f"{'D, H, N, edges':<20}" + "".join(f"{name:>16}" for name in names) + f"{'a sweep':>18}{'ratio':>8}")
    for size in SIZES:
        state = network(*size)
        cells = []
        sums = []
        for of in engines:
            many = moves(of, size[2])
            times = {name: milliseconds(move, state, REPEATS[of.name]) for name, (_, move) in many.items()}
            cells.append(times)
            sums.append(sum(many[name][0] * spent for name, spent in times.items()))
        line = "".join(f"{cells[0][name]:>8.3f} /{cells[1][name]:>6.2f}" for name in names)
        print(
            f"{', '.join(map(str, size)):<20}{line}{sums[0]:>9.2f} /{sums[1]:>7.1f}{sums[1] / sums[0]:>8.1f}",
            flush=True,
        )


def compiling() -> None:
    """Print the seconds of the first sweep without and with a cache of compiled code."""
    code = (
        "import time; t = time.perf_counter(); from fathomless.families.graph.engine import engine; "
        "import sys; sys.path.insert(0, 'benchmarks'); import graph, numpy as np; of = engine('compiled'); "
        "s = graph.network(2, 3, 20, 5); g = np.random.default_rng(0); "
        "[move(s.copy(), g) for _, move in graph.moves(of, 20).values()]; "
        "print(round(time.perf_counter() - t, 1))"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "cached"):
            where = {**os.environ, "NUMBA_CACHE_DIR": folder}
            done = subprocess.run([sys.executable, "-c", code], env=where, capture_output=True, text=True, check=True)
            print(f"first sweep, {name}: {done.stdout.strip()} s", flush=True)


if __name__ == "__main__":
    for part in sys.argv[1:] or ("moves", "compiling"):
        {"moves": table, "compiling": compiling}[part]()
