"""Draw the picture of the front page: a function whose noise grows, and the posterior over depth with its errors.

The documentation draws it while it is built. ``python docs/first_picture.py`` writes the copy in README, with a white
background.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from fathomless import UnboundedDepthRegressor, plots
from fathomless.data import datasets
from fathomless.families.depth.plots import depth_posterior

X, y = datasets.heteroscedastic(400, seed=0)
reg = UnboundedDepthRegressor(noise="input", epochs=400, random_state=0).fit(X, y)

x = np.linspace(-0.05, 1.05, 200)
levels = [0.05, 0.25, 0.5, 0.75, 0.95]
page, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained", width_ratios=(3, 2))
plots.functions(x, reg.predict_dist(x[:, None]).quantiles(levels), levels, X=X[:, 0], y=y, ax=left)
depth_posterior(reg.depth_posterior_, errors=reg.depth_posterior_error_, ax=right)

if "__file__" in globals():  # run as a script: Sphinx sets no __file__
    page.savefig(Path(__file__).parent / "_static" / "first_picture.png", dpi=140, facecolor="white")
