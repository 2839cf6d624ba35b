"""Recalibrations with few steps, for tests of other parts: a third of the time of a small cross-fitted fit."""

import pytest

from fathomless.inference.out_of_fold import recalibration

MOST_STEPS = 24
FULL_STEPS = recalibration._MOST_STEPS  # of the library


def limit_steps(patch: pytest.MonkeyPatch, most: int = MOST_STEPS) -> None:
    """Limit the number of steps of the networks of the recalibration."""
    patch.setattr(recalibration, "_MOST_STEPS", most)
