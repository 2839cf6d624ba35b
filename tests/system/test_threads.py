"""Numbers of threads of fits: one for narrow networks, unless the user chose a number."""

import os
import subprocess
import sys

from fathomless.system.torch_state import WIDE, is_wide

PROGRAM = """
import warnings
import numpy as np, torch
from fathomless import UnboundedDepthRegressor
from fathomless.system.torch_state import set_threads
warnings.simplefilter("ignore")
x = np.linspace(0, 1, 20)

def fit(width):
    before, seen = torch.get_num_threads(), set()
    note = lambda run: seen.add(torch.get_num_threads())
    UnboundedDepthRegressor(width=width, depth_law=1, epochs=2, cv=1, callbacks=[note]).fit(x[:, None], x)
    print(before, *seen, torch.get_num_threads())

fit(8)
fit(256)
torch.set_num_threads(torch.get_num_threads() + 1)
fit(8)
torch.set_num_threads(torch.get_num_threads() - 1)
fit(8)
set_threads(torch.get_num_threads())
fit(8)
"""


def test_widths_of_candidates_count() -> None:
    assert not is_wide({})
    assert not is_wide({"width": "auto", "candidates": 40})
    assert not is_wide({"width": (512, 512)})
    assert is_wide({"width": WIDE})
    assert is_wide({"width": "auto", "candidates": {"width": [64, WIDE]}})


def counts(**environment: str) -> list[tuple[int, ...]]:
    """Return the numbers of threads before, during and after each fit of a program."""
    rest = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, "-c", PROGRAM]
    said = subprocess.run(command, env={**rest, **environment}, capture_output=True, text=True, check=True)
    return [tuple(map(int, line.split())) for line in said.stdout.splitlines()]


def test_fits_of_narrow_networks_use_one_thread_unless_chosen() -> None:
    narrow, wide, more, again, chosen = counts()
    n = narrow[0]
    assert narrow == again == (n, 1, n)
    assert wide == chosen == (n, n, n)
    assert more == (n + 1, n + 1, n + 1)
    for before, inside, after in counts(OMP_NUM_THREADS="2"):
        assert before == inside == after
