"""Student's law against arithmetic of forty digits."""

import math

import mpmath
import numpy as np
import pytest
import torch

from fathomless.posterior import student

P = [1e-300, 1e-200, 1e-150, 1e-120, 1e-116, 1e-100, 1e-60, 1e-41, 1e-39, 1e-20, 1e-3, 0.3, 0.5, 0.9]


def exact(z: float, df: float | mpmath.mpf) -> mpmath.mpf:
    """Return the probability below z."""
    with mpmath.workdps(40):
        z, df = mpmath.mpf(z), mpmath.mpf(df)
        tail = mpmath.betainc(df / 2, mpmath.mpf(1) / 2, 0, df / (df + z * z), regularized=True) / 2
        return tail if z < 0 else 1 - tail


@pytest.mark.parametrize("df", [2.0001, 2.05, 2.1, 3.0, 5.0, 30.0, 200.0, 1e4, 1e6])
def test_quantiles_are_right_as_far_as_there_are_normal_numbers(df: float) -> None:
    z = student.icdf(torch.tensor(P, dtype=torch.float64), torch.tensor(df, dtype=torch.float64))
    for p, found in zip(P, z.tolist(), strict=True):
        assert float(exact(found, df) / mpmath.mpf(p)) == pytest.approx(1.0, abs=1e-11), p


def test_quantiles_of_the_least_numbers_are_finite_and_in_order() -> None:
    p, df = (
        torch.tensor([0.0, 5e-324, 1e-310, 1e-300, 1.0], dtype=torch.float64),
        torch.tensor([[2.0001], [5.0], [1e6]]),
    )
    z = student.icdf(p, df.double())
    assert z[:, 1:4].isfinite().all()
    assert (z.diff() > 0).all()
    assert (z[:, 0] == -math.inf).all()
    assert (z[:, -1] == math.inf).all()


@pytest.mark.parametrize("z", [-1e40, -30.0, -1.0, 0.0, 2.0, 30.0, 1e10])
def test_slopes_in_the_degrees_of_freedom_are_right_in_both_tails(z: float) -> None:
    df = torch.tensor(3.5, dtype=torch.float64)
    slope = student.cdf_slope(torch.tensor(z, dtype=torch.float64), df).item()
    with mpmath.workdps(60):
        far, step = -abs(z), mpmath.mpf("1e-12")
        oracle = float((exact(far, 3.5 + step) - exact(far, 3.5 - step)) / (2 * step))
    np.testing.assert_allclose(slope, oracle if z <= 0 else -oracle, rtol=1e-4, atol=1e-12)
