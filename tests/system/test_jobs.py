"""Calls in parallel by joblib, for backends that return results one by one, and that return all at the end."""

from collections.abc import Iterator

import joblib
import pytest
from joblib._parallel_backends import ThreadingBackend

from fathomless.system.jobs import call_in_parallel

MADE: list[int] = []


class AtTheEnd(ThreadingBackend):
    """A backend that returns all results at the end, as Ray does."""

    supports_return_generator = False


@pytest.fixture(params=["threading", "at the end", "loky"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    joblib.register_parallel_backend("at the end", AtTheEnd)
    MADE.clear()
    with joblib.parallel_config(request.param):
        yield request.param


def square(value: int) -> int:
    MADE.append(value)
    return value**2


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_every_call_is_made_once(backend: str, jobs: int) -> None:
    found = list(call_in_parallel((joblib.delayed(square)(i) for i in range(7)), jobs))
    assert sorted(found) == [i**2 for i in range(7)]
    assert backend == "loky" or sorted(MADE) == list(range(7))


def test_results_are_returned_before_all_calls_are_made() -> None:
    joblib.register_parallel_backend("at the end", AtTheEnd)
    MADE.clear()
    with joblib.parallel_config("at the end", n_jobs=2):
        results = call_in_parallel(joblib.delayed(square)(i) for i in range(6))
        assert {next(results), next(results)} == {0, 1}
        assert sorted(MADE) == [0, 1]
        assert list(results) == [4, 9, 16, 25]
