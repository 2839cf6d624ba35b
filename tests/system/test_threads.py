"""Numbers of threads of fits: one for narrow networks, unless the user chose a number."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import warnings
import numpy as np, torch
from fathomless import UnboundedDepthRegressor
from fathomless.system.torch_state import set_threads
warnings.simplefilter("ignore")
initial = torch.get_num_threads()
{choice}
before = torch.get_num_threads()
seen = set()
x = np.linspace(0, 1, 40)
note = lambda run: seen.add(torch.get_num_threads())
UnboundedDepthRegressor(width={width}, depth_law=1, epochs=2, cv=2, callbacks=[note]).fit(x[:, None], x)
print(initial, before, *seen, torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("width", "choice", "environment", "expected"),
    [
        (8, "", {}, "one"),
        (256, "", {}, "initial"),
        (8, "torch.set_num_threads(initial + 1)", {}, "before"),
        (8, "set_threads(initial)", {}, "before"),
        (8, "", {"OMP_NUM_THREADS": "2"}, "before"),
    ],
)
def test_fits_of_narrow_networks_use_one_thread_unless_chosen(
    width: int, choice: str, environment: dict[str, str], expected: str
) -> None:
    rest = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, "-c", PROGRAM.format(width=width, choice=choice)]
    said = subprocess.run(command, env={**rest, **environment}, capture_output=True, text=True, check=True)
    initial, before, inside, after = map(int, said.stdout.split())
    assert inside == {"one": 1, "initial": initial, "before": before}[expected]
    assert after == before
