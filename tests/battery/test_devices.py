"""On the simulated accelerator every family and mode does what it does on the processor, to the same numbers."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from battery.on_simulated import chosen, steps

TESTS = Path(__file__).parents[1]
NAMED = {case.name: case for case in chosen()}

# registering a device changes torch in a whole process: all cases run in one of their own
pytestmark = pytest.mark.slow


@cache
def lines() -> tuple[dict[str, dict[str, Any]], str]:
    """Return the line of each case, and the end of what a process that failed printed."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "benchmarks"), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, str(TESTS / "battery" / "on_simulated.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    return {line["case"]: line for line in found}, ran.stderr[-2000:] if ran.returncode else ""


@pytest.mark.parametrize("name", NAMED)
def test_a_case_does_on_an_accelerator_what_it_does_on_the_processor(name: str) -> None:
    found, error = lines()
    assert name in found, error
    line = found[name]
    assert "failed" not in line, line
    assert line["steps"] == list(steps(NAMED[name]))


REFUSALS = """
import torch, simulated
x, at = torch.zeros(3, 2, device="sim"), torch.tensor([0])
for what in (
    lambda: x + torch.ones(3, 2),
    lambda: torch.ones(3)[at.to("sim")],
    lambda: torch.randn(2, device="sim", generator=torch.Generator()),
    lambda: x.numpy(),
    lambda: x @ torch.ones(2),
):
    try:
        what()
    except (RuntimeError, TypeError):
        continue
    raise SystemExit(1)
assert (x[at] + torch.tensor(1.0)).cpu().tolist() == [[1.0, 1.0]]
assert x.cpu().data_ptr() != x.data_ptr()
"""


def test_the_simulated_device_refuses_what_a_real_one_refuses() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", REFUSALS],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
