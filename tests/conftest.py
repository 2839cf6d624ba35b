"""Common fixtures."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from commands import Call, Said

collect_ignore = ["simulated.py"]  # its import registers a device in the whole process

pytest.register_assert_rewrite("housing", "refusals", "run_folders")  # detailed messages for their assertions

# the same examples in every run; new ones with pytest --hypothesis-profile=explore
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=300, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--data", default=os.environ.get("FATHOMLESS_DATA"), help="folder of the public data sets")


#: Further tests that run in one process: fits of the battery are cached, and the sampler of graphs is compiled once.
#: Marks of groups are not used: pytest-xdist 3.8 ignores them with pytest 9.2.
TOGETHER = ("tests/battery/test_devices.py", "tests/battery/", "tests/families/graph/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a module or of a folder in one process, where their fixtures are computed once."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((start for start in TOGETHER if path.startswith(start)), path)

    return Together(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def data_folder(request: pytest.FixtureRequest) -> Path:
    """Return the folder of public data sets; skip the test if it is not available."""
    given = request.config.getoption("--data")
    if not given:
        pytest.skip("needs the public data sets: give their folder as --data or in FATHOMLESS_DATA")
    return Path(given)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use a single thread, which is fastest for small problems and for tests in several processes."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def files_are_left_to_the_system() -> Iterator[None]:
    """Do not wait until files are on the disk: only a loss of power would show it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def few_steps_of_recalibration(request: pytest.FixtureRequest) -> Iterator[None]:
    """Train recalibrations for a few steps, except in modules with the marker ``recalibration``."""
    from short_recalibration import limit_steps

    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("recalibration") is None:
            limit_steps(patch)
        yield


@pytest.fixture
def full_recalibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train recalibrations for as many steps as users do, in a single test."""
    from short_recalibration import FULL_STEPS, limit_steps

    limit_steps(monkeypatch, FULL_STEPS)


@pytest.fixture
def generator() -> torch.Generator:
    """Return a generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that calls the command line with arguments, and returns its output and exit code."""
    from fathomless.app.cli import main

    def run(*words: Any) -> Said:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run
