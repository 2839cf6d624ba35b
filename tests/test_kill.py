"""Killed and repeated commands: results are bit-identical to uninterrupted ones. The full campaign is storm.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fathomless.families.registry import families

COMMANDS = ("compare", "evaluate", "report", "predict")
STAGED = (
    "finite",
    "dropout",
    "meanfield",
    "subspace",
    "matrix-normal",
)  # whose runs are those of laplace, swag, depth-uncertainty


@pytest.mark.skipif(not hasattr(os, "fork"), reason="killed commands are forked")
def test_whatever_is_killed_and_repeated_ends_in_the_same_bytes() -> None:
    script = Path(__file__).with_name("storm.py")
    done = subprocess.run([sys.executable, str(script), "--thin"], capture_output=True, text=True, check=False)
    found = {name: (kills, told) for name, kills, told in map(json.loads, done.stdout.splitlines())}
    assert not {name: told for name, (_, told) in found.items() if told}
    assert done.returncode == 0, done.stderr
    first = {name.partition(" ")[0] for name in found}
    assert first == ({name for name in families() if name not in STAGED} | {"hmc", "density", *COMMANDS})
    assert all(kills == 2 for name, (kills, _) in found.items() if name not in COMMANDS[1:]), found
    assert sum(kills for kills, _ in found.values()) >= 29
