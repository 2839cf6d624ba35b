"""Time limits of trainings, with clocks that are moved by hand."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.runs.driver import drive
from fathomless.inference.runs.limits import Pace, Planned, TimeLimit
from fathomless.system.errors import DataError


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Work(Planned):
    """Epochs that each take the same time, with an evaluation after every few."""

    def __init__(self, clock: Hand, epochs: int, seconds: float, every: int = 1, first: float = 0.0) -> None:
        self.clock, self.planned, self.seconds, self.every, self.first = clock, epochs, seconds, every, first
        self.epoch, self.stop, self.pause = 0, False, False
        self.history: list[dict[str, float]] = []

    @property
    def epochs(self) -> int:
        return self.planned

    def shorten(self, epochs: int) -> None:
        assert self.epoch <= epochs < self.planned
        self.planned = epochs

    def advance(self) -> None:
        done = min(self.every, self.planned - self.epoch)
        self.clock.now += self.seconds * done + (0.0 if self.history else self.first)
        self.epoch += done
        self.history.append({"epoch": self.epoch})

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def meta(self) -> dict[str, Any]:
        return {}

    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None: ...


@given(
    epochs=st.integers(1, 500),
    seconds=st.floats(1e-3, 10.0),
    every=st.integers(1, 20),
    first=st.floats(0.0, 2.0),
    limit=st.floats(0.01, 500.0),
)
def test_trainings_end_in_time(epochs: int, seconds: float, every: int, first: float, limit: float) -> None:
    clock = Hand()
    run = Work(clock, epochs, seconds, every, first)
    pace = Pace(TimeLimit(limit, clock.now, clock))
    drive(run, run.advance, callbacks=[pace])
    used = clock.now - 50.0
    assert used <= limit + 2 * every * seconds + first  # two evaluations beyond the limit at most
    assert pace.exceeded == (run.planned < epochs)
    if first + epochs * seconds <= limit and first == 0.0:
        assert run.epoch == epochs
    if pace.exceeded and first == 0.0:  # and no time is wasted
        assert used >= limit - (1 + every) * seconds - 1e-6


def test_a_slow_first_round_says_nothing_of_the_others() -> None:
    clock = Hand()
    run = Work(clock, 100, 0.01, every=5, first=5.0)
    drive(run, run.advance, callbacks=[Pace(TimeLimit(7.0, clock.now, clock))])
    assert run.epochs == run.epoch == 100


def test_a_training_that_may_not_be_shortened_is_stopped() -> None:
    clock = Hand()
    run = Work(clock, 100, 1.0)
    pace = Pace(TimeLimit(20.0, clock.now, clock), stops=True)
    drive(run, run.advance, callbacks=[pace])
    assert pace.exceeded
    assert run.epoch == 3  # a tenth of the time after the first epoch is needed to measure the speed
    assert run.epochs == 100


def test_a_resumed_run_and_a_second_training_are_measured_from_their_beginning() -> None:
    clock = Hand()
    run = Work(clock, 100, 1.0, every=5)
    run.epoch, run.history = 60, [{"epoch": 55}, {"epoch": 60}]
    drive(run, run.advance, callbacks=[Pace(TimeLimit(30.0, clock.now, clock))])
    assert run.epoch == 90
    again = Work(clock, 100, 1.0, every=5)
    pace = Pace(TimeLimit(60.0, clock.now, clock))
    drive(again, again.advance, callbacks=[pace, lambda one: setattr(one, "stop", one.epoch == 20)])
    other = Work(clock, 100, 1.0, every=5)
    drive(other, other.advance, callbacks=[pace])
    assert other.epoch == 40


@given(
    planned=st.integers(1, 1000),
    focus=st.sampled_from([0.4, 1.0]),
    steps=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), max_size=5),
    focusing=st.booleans(),
)
def test_a_search_keeps_both_phases_when_it_is_shortened(
    planned: int, focus: float, steps: list[tuple[float, float]], focusing: bool
) -> None:
    search = StructureSearch(planned, focus=focus)
    search.focusing = focusing
    epoch = search.explored if focusing else 0
    for share, ahead in steps:
        last = search.epochs if focusing else search.explored - 1
        epoch = min(max(epoch, round(epoch + ahead * (last - epoch))), last)
        before = search.epochs, search.explored
        search.shorten(max(epoch, round(share * search.epochs)), epoch)
        assert search.epochs <= max(before[0], epoch + 2)
        assert search.explored <= before[1]
        assert search.epochs - search.explored >= 1
        if focusing:
            assert search.explored == before[1]
        else:
            assert search.explored > epoch
            assert search.is_due(search.explored)
    begun, end = search.explored * 7, search.epochs * 7
    assert search.factor(begun - 1, 7) == 1.0
    assert search.factor(end, 7) == pytest.approx(0.0, abs=1e-12)
    other = StructureSearch(planned, focus=focus)
    other.resume(search.to_json())
    assert (other.epochs, other.explored) == (search.epochs, search.explored)


def test_parts_of_a_limit_are_shares_of_what_is_left() -> None:
    clock = Hand()
    limit = TimeLimit(100.0, clock.now, clock)
    clock.now += 60.0
    assert limit.left() == 40.0
    assert limit.part(0.25).left() == 10.0
    assert limit.allows(40.0)
    assert not limit.allows(40.1)
    clock.now += 60.0
    assert limit.left() == 0.0 == limit.part(0.5).left()


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_odd_minutes_are_refused(minutes: float) -> None:
    with pytest.raises(DataError, match="minutes="):
        TimeLimit.of(minutes)
    assert TimeLimit.of(None) is None
