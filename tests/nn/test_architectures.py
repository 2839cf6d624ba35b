"""Layers and heads of the included architectures."""

from collections.abc import Callable

import pytest

from fathomless.nn.architectures import MLP, make_activation
from fathomless.system.errors import DataError


@pytest.mark.parametrize("build", [lambda: MLP(2, 1, 4, activation="swish"), lambda: make_activation("swish")])
def test_an_unknown_activation_is_refused_by_the_name_of_the_option(build: Callable[[], object]) -> None:
    with pytest.raises(DataError, match=r"^activation='swish' was given; allowed are "):
        build()
