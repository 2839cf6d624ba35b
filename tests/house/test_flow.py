"""The order of calls follows the order of imports: values are passed down, and few hooks call up."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

import numpy as np
import pytest

import fathomless
from fathomless.estimators.base import Estimator
from fathomless.estimators.problem import Problem
from fathomless.estimators.strategies import SVI, Then

ROOT = Path(fathomless.__file__).parent
ESTIMATORS = sorted((ROOT / "estimators").glob("*.py"))
HOOKS = {  # abstract methods of estimators by module, which a family or a task must define
    "base": {"_split_plan", "_strategy", "_task", "_describe"},
    "networks": {"_build_model", "_check_saved"},
    "tasks": {"score_samples", "sample"},
}
STEPS = {"__call__"}  # steps after an inference: values that a family passes down
LONGEST = 29  # classes in a method resolution order, including those of scikit-learn
MODEL = {"draw", "structure", "stochastic", "list_structures", "network"}  # capabilities of a model


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_estimators_have_no_other_hooks() -> None:
    found: dict[str, set[str]] = {}
    for path in ESTIMATORS:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(one, ast.Name) and one.id == "abstractmethod" for one in node.decorator_list
            ):
                found.setdefault(path.stem, set()).add(node.name)
    assert found == HOOKS


def test_no_estimator_asks_for_its_own_class() -> None:
    for path in (*ESTIMATORS, *(ROOT / "families").rglob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                first = node.args[0]
                assert not (isinstance(first, ast.Name) and first.id == "self"), f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("name", sorted(name for name in fathomless.__all__ if name[0].isupper()))
def test_the_method_resolution_order_is_not_longer(name: str) -> None:
    kind = getattr(fathomless, name)
    if inspect.isclass(kind) and issubclass(kind, Estimator):
        assert len(kind.__mro__) <= LONGEST


FITS = {
    "UnboundedDepthRegressor": {"epochs": 3, "width": 4},
    "SparseBayesRegressor": {"epochs": 3, "width": 4},
    "ContinuousDepthRegressor": {"epochs": 3, "width": 4},
    "IndianChefsRegressor": {"chains": 2, "sweeps": 8, "states": 2, "engine": "numpy"},
    "ProjectedBayesRegressor": {"candidates": 10, "latent_dim": 1},
    "LaplaceNetworkRegressor": {"epochs": 3, "width": 4},
    "SWAGNetworkRegressor": {"epochs": 3, "width": 4},
    "SubspaceNetworkRegressor": {"epochs": 3, "width": 4},
    "DeepEnsembleRegressor": {"epochs": 3, "width": 4},
}


def parts(value: Any) -> Iterator[Any]:
    """Yield a strategy and all values that it holds, except the networks of a problem."""
    yield value
    if isinstance(value, partial):
        held = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, MethodType):
        held = [value.__self__]
    elif isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
    elif isinstance(value, Mapping):
        held = list(value.values())
    elif isinstance(value, list | tuple):
        held = list(value)
    elif is_dataclass(value) and not isinstance(value, type | Estimator | Problem):
        held = [getattr(value, one.name) for one in fields(value)]
    else:
        held = []
    for one in held:
        yield from parts(one)


@pytest.mark.parametrize("name", FITS)
def test_a_strategy_holds_values_and_no_estimator(name: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(70, 2)), rng.normal(size=70)
    estimator = getattr(fathomless, name)(**FITS[name], random_state=0)
    strategy = estimator._strategy(estimator._prepare(X, y, None))
    assert not [one for one in parts(strategy) if isinstance(one, Estimator)]
    assert isinstance(strategy, SVI | Then) or "infer" in vars(type(strategy))
    with pytest.raises(FrozenInstanceError):
        strategy.other = 1


def upward(work: Any) -> set[tuple[str, str]]:
    """Return the calls from estimators into families during `work`, as (module, function)."""
    found: set[tuple[str, str]] = set()

    def place(frame: FrameType) -> str:
        path = Path(frame.f_code.co_filename)
        return ".".join(path.relative_to(ROOT).with_suffix("").parts) if path.is_relative_to(ROOT) else ""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not place(frame).startswith("families."):
            return
        back = frame.f_back
        while back is not None and not place(back):
            back = back.f_back
        if back is not None and place(back).startswith("estimators."):
            found.add((place(back), frame.f_code.co_name))

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
def test_a_fit_calls_up_by_hooks_and_models_alone() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = X[:, 0] + rng.normal(size=60)
    calls = upward(lambda: fathomless.UnboundedDepthRegressor(epochs=3, width=4, random_state=0).fit(X, y))
    allowed = set().union(*HOOKS.values()) | MODEL | STEPS | {"_multiplications"}  # a function that is passed down
    assert {function for _, function in calls} <= allowed
    assert len(calls) <= 12
