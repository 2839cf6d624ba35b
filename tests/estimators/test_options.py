"""Declarations of options for Python and the command line."""

import numpy as np
import pytest

from fathomless import UnboundedDepthRegressor
from fathomless.estimators.options import NoiseOptions, options_of

NAMES = next(option.metadata["names"] for option in options_of(NoiseOptions) if option.name == "likelihood")


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", NAMES)
def test_every_law_of_the_noise_that_is_offered_can_be_built(name: str) -> None:
    x = np.linspace(0.0, 1.0, 12)
    fitted = UnboundedDepthRegressor(likelihood=name, width=4, epochs=1, random_state=0).fit(x[:, None], np.c_[x, -x])
    assert fitted.likelihood_.outputs == 2
