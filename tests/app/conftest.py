"""Folders that the tests of the command line work in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fathomless.app.page import report
from housing import houses, write
from run_folders import write_table


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder of its own, and draw no pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "render", lambda page: f"<html>{page.title}</html>\n")
    yield
    torch.set_num_threads(1)


@pytest.fixture
def houses_csv(workplace: None) -> None:
    """Work in a folder that holds houses.csv, a small table with a column of every kind."""
    write("houses.csv", houses())


@pytest.fixture
def data_csv(workplace: None) -> None:
    """Work in a folder that holds data.csv, a smaller table."""
    write_table("data.csv")
