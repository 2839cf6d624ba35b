"""Fixtures that many tests share."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from commands import Call, Said

collect_ignore = ["simulated.py"]  # its import registers a device in the whole process

pytest.register_assert_rewrite("housing", "refusals", "run_folders")  # what they assert is explained as in a test

# the same examples in every run; to look for new ones: pytest --hypothesis-profile=explore
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=300, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--data", default=os.environ.get("FATHOMLESS_DATA"), help="folder of the public data sets")


@pytest.fixture(scope="session")
def data_folder(request: pytest.FixtureRequest) -> Path:
    """The folder of public data sets; tests that need it are skipped where it is not given."""
    given = request.config.getoption("--data")
    if not given:
        pytest.skip("needs the public data sets: give their folder as --data or in FATHOMLESS_DATA")
    return Path(given)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small problems run fastest on one thread, and the tests run in several processes."""
    torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    """A generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line: words to what it said and how it ended."""
    from fathomless.app.cli import main

    def run(*words: Any) -> Said:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run
