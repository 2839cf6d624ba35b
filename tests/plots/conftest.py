"""Fixtures of the tests of pictures."""

from collections.abc import Iterator

import pytest
from matplotlib import pyplot as plt


@pytest.fixture
def closed() -> Iterator[None]:
    """Close whatever figures a test left open."""
    yield
    plt.close("all")
