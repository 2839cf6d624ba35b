"""Fixtures of the tests that read and write tables."""

import io
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Write bytes or text to a file and return its path; the name says nothing of the content."""
    path = tmp_path_factory.mktemp("tables") / "table.dat"

    def write(content):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def standard(monkeypatch):
    """Put bytes on standard input and return what was written to standard output."""

    def replace(content=b""):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content))))
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
        return out

    return replace
