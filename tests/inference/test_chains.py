"""Chains as values: the law, the plan, resuming to the same bytes, chains that fail."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathomless.inference.mcmc.chains import Chains, Plan, Sampler, run_chains
from fathomless.inference.runs.callbacks import Checkpoint, History
from fathomless.system.errors import DataError, DivergenceError, PausedError


class Walk(Sampler[np.ndarray]):
    """A Metropolis walk on a normal law, whose kept states have sizes of their own."""

    def start(self, generator: np.random.Generator) -> np.ndarray:
        return generator.normal(size=2)

    def sweep(self, state: np.ndarray, done: int, generator: np.random.Generator) -> np.ndarray:
        new = state + generator.normal(size=2)
        return new if np.log(generator.random()) < 0.5 * (state @ state - new @ new) else state

    def follow(self, state: np.ndarray) -> dict[str, float]:
        return {"first": float(state[0]), "square": float(state @ state)}

    def keep(self, state: np.ndarray) -> dict[str, np.ndarray]:
        size = 1 + int(abs(state[0]) * 3)
        return {"values": np.full(size, state[0]), "table": np.full((size, 2), state[1]), "sign": np.array([size])}

    def pack(self, state: np.ndarray) -> dict[str, np.ndarray]:
        return {"x": state}

    def unpack(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        return arrays["x"]


def told(run: Chains[Any]) -> tuple[Any, ...]:
    """Everything of a run, as bytes."""
    tensors = {name: tensor.numpy().tobytes() for name, tensor in run.tensors().items()}
    return tensors, run.meta()


def test_chains_have_their_law() -> None:
    run = run_chains(Walk(), Plan(chains=6, sweeps=2000, states=100), seed=1)
    found = run.diagnose()
    assert found["square"].rhat is not None
    assert found["square"].rhat < 1.03
    assert abs(found["square"].mean - 2.0) < 4 * found["square"].mcse
    assert abs(found["first"].mean) < 4 * found["first"].mcse
    assert all(len(chain.kept) == 100 for chain in run.chains)
    assert [row["epoch"] for row in run.history] == list(range(50, 2001, 50))


def test_a_plan_keeps_evenly_spaced_states_after_the_burn_in() -> None:
    plan = Plan(sweeps=100, burn_in=0.4, states=20)
    assert plan.kept == tuple(range(43, 101, 3))
    assert Plan(sweeps=10, burn_in=0.0, states=10).kept == tuple(range(1, 11))
    with pytest.raises(DataError, match=r"states=61 was given, but sweeps=100 with burn_in=0\.4 leave 60 sweeps"):
        Plan(sweeps=100, burn_in=0.4, states=61)
    with pytest.raises(DataError, match=r"burn_in=1\.0 was given; 0 <= burn_in < 1"):
        Plan(burn_in=1.0)
    with pytest.raises(DataError, match="chains=0 was given"):
        Plan(chains=0)


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("blocks", [1, 7, 23])
def test_resume_is_bit_equal(tmp_path: Path, jobs: int, blocks: int) -> None:
    plan = Plan(chains=5, sweeps=240, states=30, jobs=jobs)
    whole = run_chains(Walk(), Plan(chains=5, sweeps=240, states=30), seed=3)
    keeper = Checkpoint(tmp_path / "check", seconds=0.0)

    def pause(run: Chains[np.ndarray]) -> None:
        run.pause = len(run.history) == blocks

    with pytest.raises(PausedError, match=f"paused after sweep {blocks * 6} of 240"):
        run_chains(Walk(), plan, seed=3, callbacks=[pause, keeper])
    resumed = run_chains(Walk(), plan, seed=3, resume=keeper.load(), callbacks=[History(tmp_path)])
    assert told(resumed) == told(whole)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 40
    for one, other in zip(resumed.chains, whole.chains, strict=True):
        assert all(np.array_equal(a[name], b[name]) for a, b in zip(one.kept, other.kept, strict=True) for name in a)


def test_the_order_of_tensors_in_a_checkpoint_does_not_matter(tmp_path: Path) -> None:
    """Files of tensors keep no order, and histories and kept states have the names in theirs."""
    plan = Plan(chains=3, sweeps=60, states=10)
    keeper = Checkpoint(tmp_path / "check", seconds=0.0)

    def pause(run: Chains[np.ndarray]) -> None:
        run.pause = run.epoch >= 40

    with pytest.raises(PausedError):
        run_chains(Walk(), plan, seed=3, callbacks=[pause, keeper])
    found = keeper.load()
    assert found is not None
    tensors, meta = found
    whole = run_chains(Walk(), plan, seed=3)
    for names in (sorted(tensors), sorted(tensors, reverse=True)):
        resumed = run_chains(Walk(), plan, seed=3, resume=({name: tensors[name] for name in names}, meta))
        assert [list(row) for row in resumed.history] == [list(row) for row in whole.history]
        for one, other in zip(resumed.chains, whole.chains, strict=True):
            assert list(one.traces) == list(other.traces)
            assert [list(state) for state in one.kept] == [list(state) for state in other.kept]


@pytest.mark.parametrize("sweeps", [480, 4000])  # traces of every sweep, and of every fourth
def test_chains_that_have_ended_go_on_as_one_long_run(tmp_path: Path, sweeps: int) -> None:
    keeper = Checkpoint(tmp_path / "check")
    run_chains(Walk(), Plan(chains=3, sweeps=240, states=30), seed=3, callbacks=[keeper])
    longer = Plan(chains=3, sweeps=sweeps, states=20)
    whole, more = run_chains(Walk(), longer, seed=3), run_chains(Walk(), longer, seed=3, resume=keeper.load())
    for one, other in zip(more.chains, whole.chains, strict=True):
        assert one.traces == other.traces
        assert len(one.kept) == 20
        assert all(np.array_equal(a[name], b[name]) for a, b in zip(one.kept, other.kept, strict=True) for name in a)
    with pytest.raises(
        DataError, match=r"sweeps=300 was given to extend a run with 240 of 240 sweeps done; .* sweeps=479 is the next"
    ):
        run_chains(Walk(), Plan(chains=3, sweeps=300, states=30), seed=3, resume=keeper.load())


def test_a_chain_does_not_know_of_the_others() -> None:
    few = run_chains(Walk(), Plan(chains=2, sweeps=100, states=10), seed=5)
    many = run_chains(Walk(), Plan(chains=6, sweeps=100, states=10, jobs=3), seed=5)
    for number in range(2):
        assert few.chains[number].traces == many.chains[number].traces
    assert many.chains[2].traces != many.chains[3].traces


def test_a_chain_that_fails_stops_and_the_others_go_on() -> None:
    class Fragile(Walk):
        share = 0.5  # of the chains that fail

        def sweep(self, state: np.ndarray, done: int, generator: np.random.Generator) -> np.ndarray:
            if done == 60 and generator.random() < self.share:
                raise DivergenceError("the log density of the weights is nan with 3 units")
            return Walk.sweep(self, state, done, generator)

    run = run_chains(Fragile(), Plan(chains=8, sweeps=100, burn_in=0.2, states=40), seed=0)
    failed = [chain for chain in run.chains if chain.error]
    assert 0 < len(failed) < 8
    assert failed[0].error == f"chain {failed[0].number}, sweep 61: the log density of the weights is nan with 3 units"
    assert len(failed[0].kept) == 20
    assert run.trace("first").shape == (8 - len(failed), 80)
    Fragile.share = 1.0
    with pytest.raises(DivergenceError, match=r"all 3 chains failed; the first: chain 0, sweep 61: the log density"):
        run_chains(Fragile(), Plan(chains=3, sweeps=100, states=5), seed=0)


@pytest.mark.parametrize(("sweeps", "burn_in", "states"), [(4000, 0.5, 250), (60, 0.5, 30), (60, 0.0, 60), (1, 0.0, 1)])
def test_states_follow_the_sweeps_unless_they_are_given(sweeps, burn_in, states):
    assert Plan.of(2, sweeps, burn_in, "auto", usual=250).states == states
    assert Plan.of(2, sweeps, burn_in, 1, usual=250).states == 1
    with pytest.raises(DataError, match="at most that many states"):
        Plan.of(2, sweeps, burn_in, sweeps + 1, usual=250)
    with pytest.raises(DataError, match="states"):
        Plan.of(2, sweeps, burn_in, "many", usual=250)
