"""Recalibrations with few steps, for tests of other parts: a third of the time of a small cross-fitted fit."""

import pytest

from fathomless.inference.out_of_fold import recalibration

MOST_STEPS = 24


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Limit the number of steps of the networks of the recalibration."""
    patch.setattr(recalibration, "_MOST_STEPS", MOST_STEPS)
