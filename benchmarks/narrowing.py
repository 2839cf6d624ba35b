"""Coverage of new rows by the reduction of the noise for the average of networks.

    python benchmarks/narrowing.py                  2,000 rows, noise 0.1 and 0.3, three seeds
    python benchmarks/narrowing.py --rows 500 --seeds 1

Rows have four standard normal columns and the target sin(2 x0) + x1 x2 with normal noise. Printed are the coverage of
90 % intervals of 4,000 new rows and of out-of-fold rows, root mean squared errors of both, the factor of the noise
(`fit_diagnostics_.narrowing`), and the factor with the highest log-likelihood of the new rows ("best"), relative to the
noise of single networks. The laws of the second stage are left out of the last number, which is that of normal laws.
"""

import argparse
import warnings
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from fathomless import UnboundedDepthRegressor
from fathomless.data.targets import TargetScale
from fathomless.posterior.distributions import NumberPredictive

Floats = npt.NDArray[np.float64]
FACTORS = np.linspace(0.3, 1.5, 121)
NEW = 4000


def table(rows: int, noise: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw columns and targets."""
    X = rng.normal(size=(rows, 4))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + noise * rng.normal(size=rows)


def coverage(p: NumberPredictive, y: Floats) -> float:
    """Return the share of targets in 90 % intervals."""
    low, high = (np.asarray(bound) for bound in p.interval(0.9))
    return float(((low <= y) & (y <= high)).mean())


def rmse(p: NumberPredictive, y: Floats) -> float:
    """Return the root mean squared error."""
    return float(np.sqrt(np.mean((np.asarray(p.mean) - y) ** 2)))


def best_factor(p: NumberPredictive, y: Floats, scale: float) -> float:
    """Return the factor of a scale with the highest log-likelihood of a mixture of normal laws around the networks."""
    z = (torch.as_tensor(y) - p.network_means.reshape(len(p.log_weight), -1)) / scale
    log_p = [torch.logsumexp(p.log_weight[:, None] - 0.5 * (z / c).square(), 0).mean() - np.log(c) for c in FACTORS]
    return float(FACTORS[int(torch.stack(log_p).argmax())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.1, 0.3])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{given.rows:,} rows; coverage and RMSE of {NEW:,} new rows and of out-of-fold rows")
    print("noise  seed   new    out    RMSE new     out   factor   best")
    for noise in given.noise:
        for seed in range(given.seeds):
            rng = np.random.default_rng(seed)
            (X, y), (X_new, y_new) = table(given.rows, noise, rng), table(NEW, noise, rng)
            fitted = UnboundedDepthRegressor(random_state=0).fit(X, y)
            new = cast(NumberPredictive, fitted.predict_dist(X_new))
            out = cast(NumberPredictive, fitted.predict_dist(X, fold=fitted.fold_))
            factor = fitted.fit_diagnostics_.narrowing[0]
            scale = cast(Any, fitted.likelihood_).noise.log_scale().exp().item()
            single = scale * cast(TargetScale, fitted.target_).scale[0] / factor
            print(
                f"{noise:5.2f}  {seed:4d}  {coverage(new, y_new):.3f}  {coverage(out, y):.3f}  {rmse(new, y_new):8.4f}"
                f"  {rmse(out, y):8.4f}  {factor:6.3f}  {best_factor(new, y_new, single):6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
