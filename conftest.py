"""What holds for all tests, those in docstrings too."""

import gc
import sys
from collections.abc import Iterator

import pytest

gc.disable()  # while tests are collected, which creates many objects and no garbage
gc.set_threshold(10_000)  # for the tests: collections take a twentieth of their time with the usual threshold of 700


def pytest_collection_finish() -> None:
    """Exempt the objects of the collection from garbage collections, and enable these."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    """Close what an example has drawn: pyplot warns of more than twenty figures, and warnings are errors."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
