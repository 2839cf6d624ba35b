"""Options as the command line and Python declare them."""

import pytest

from fathomless import UnboundedDepthRegressor
from fathomless.estimators.options import NoiseOptions, options_of
from fathomless.estimators.tasks import _noise_law

NAMES = next(option.metadata["names"] for option in options_of(NoiseOptions) if option.name == "likelihood")


@pytest.mark.parametrize("name", NAMES)
def test_every_law_of_the_noise_that_is_offered_can_be_built(name: str) -> None:
    assert _noise_law(UnboundedDepthRegressor(likelihood=name), 2).outputs == 2
