"""What surrounds a fit or a prediction makes no difference to it, and is left as it was."""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fathomless
from battery.cases import CASES, Case, fitted, named, predicted
from battery.test_state import contents

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


@pytest.fixture
def often() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def as_bytes(estimator: Any, X: Any) -> list[bytes]:
    return [np.asarray(one).tobytes() for one in predicted(estimator, X)]


def global_streams() -> list[Any]:
    """Return the states of the generators that Python, NumPy and torch share."""
    name, keys, *rest = np.random.get_state()
    return [random.getstate(), name, np.asarray(keys).tolist(), *rest, torch.get_rng_state().tolist()]


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(**named(CASES))
def test_predictions_in_threads_are_those_of_one_thread(case: Case, tmp_path: Path) -> None:
    estimator, (X, _) = fitted(case), case.table()
    expected = as_bytes(estimator, X)
    estimator.save(tmp_path / "before")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: as_bytes(estimator, X), range(4)))
    assert all(one == expected for one in found)
    estimator.save(tmp_path / "after")
    assert contents(tmp_path / "after") == contents(tmp_path / "before")
    assert as_bytes(estimator, X) == expected


#: Each family as it comes, and the variants that build modules late or draw weights.
DRAWN = ("depth-meanfield", "depth-cross-fitted", "sampled", "hmc")
SURROUNDED = [case for case in CASES if case.plain or any(part in case.name for part in DRAWN)]


@pytest.mark.parametrize(**named(SURROUNDED))
def test_fits_neither_depend_on_modes_of_torch_nor_use_up_its_streams(case: Case, tmp_path: Path) -> None:
    (X, y), before = case.table(), global_streams()
    # the mode that forbids most; half precision, in which what is not named in its own type overflows or is rounded
    with torch.inference_mode(), default_dtype(torch.float16):
        estimator = case.estimator().fit(X, y)
        assert global_streams() == before
        found = as_bytes(estimator, X)
        assert global_streams() == before
        loaded = fathomless.load(estimator.save(tmp_path / "one"))
        assert global_streams() == before
        again = as_bytes(loaded, X)
        assert global_streams() == before
    assert found == again == as_bytes(fitted(case), X)
    fitted(case).save(tmp_path / "plain")
    assert contents(tmp_path / "one") == contents(tmp_path / "plain")


#: Other modes and types, for regressions of each family as it comes.
OTHERS = [(torch.no_grad, torch.float64), (torch.inference_mode, torch.bfloat16)]


@pytest.mark.parametrize(("off", "dtype"), OTHERS, ids=["no_grad-float64", "inference_mode-bfloat16"])
@pytest.mark.parametrize(**named([case for case in CASES if case.plain and case.task == "regression"][:5]))
def test_bytes_of_a_fit_are_those_of_any_mode(
    case: Case, off: Callable[[], contextlib.AbstractContextManager[Any]], dtype: torch.dtype
) -> None:
    X, y = case.table()
    with off(), default_dtype(dtype):
        assert as_bytes(case.estimator().fit(X, y), X) == as_bytes(fitted(case), X)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(**named([case for case in CASES if case.plain and case.task != "classification"]))
def test_fits_in_threads_are_those_of_one_thread(case: Case) -> None:
    X, y = case.table()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: as_bytes(case.estimator().fit(X, y), X), range(2)))
    assert all(one == as_bytes(fitted(case), X) for one in found)
