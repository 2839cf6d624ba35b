"""Comparison of Laplace's approximation with laplace-torch: all weights of one trained network, on the same rows.

    python benchmarks/laplace_peers.py ours --out ours.pt       in an environment with this library
    python benchmarks/laplace_peers.py peer --of ours.pt        in an environment with laplace-torch

A network of 32 tanh units is trained on 300 rows of scikit-learn's diabetes (regression) and on 100 rows of iris
(classification). Two quantities are compared: the standard deviations of its outputs on held-out rows for a fixed prior
precision, and the log marginal likelihood of laplace-torch at the precision of this library and at its own optimum.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SIGMA = 0.7  # standard deviation of the noise, for a target of unit variance


def tables() -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return training rows, targets and held-out rows of both tables."""
    from sklearn.datasets import load_diabetes, load_iris

    found = {}
    for name, load, rows in (("numbers", load_diabetes, 300), ("classes", load_iris, 100)):
        X, y = load(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(X))
        X = (X[order] - X.mean(0)) / X.std(0)
        y = y[order]
        target = torch.from_numpy((y - y.mean()) / y.std())[:, None] if name == "numbers" else torch.from_numpy(y)
        x = torch.from_numpy(X)
        found[name] = (x[:rows], target[:rows], x[rows:])
    return found


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Return the network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs)).double()


def ours(out: Path) -> None:
    """Train the networks and compute the posteriors with this library."""
    from fathomless.data.rows import Rows
    from fathomless.families.baselines.laplace import jacobian, laplace_posterior
    from fathomless.posterior.likelihoods import Categorical, Gaussian

    kept: dict[str, Any] = {}
    for name, (x, y, others) in tables().items():
        classes = name == "classes"
        net = network(x.shape[1], 3 if classes else 1)
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(1500):
            optimiser.zero_grad()
            f = net(x)
            fit = (
                nn.functional.cross_entropy(f, y, reduction="sum")
                if classes
                else 0.5 * ((f - y) / SIGMA).square().sum()
            )
            loss = fit + 0.5 * sum(p.square().sum() for p in net.parameters())
            loss.backward()
            optimiser.step()
        size = sum(p.numel() for p in net.parameters())
        likelihood = Categorical(3).double() if classes else Gaussian(noise=SIGMA).double()
        scale = torch.ones(size, dtype=torch.float64)
        best = laplace_posterior(net, likelihood, Rows(x, y), scale)
        fixed = laplace_posterior(net, likelihood, Rows(x, y), scale, precision=1.0)
        j = jacobian(net, others)
        variance = torch.einsum("nkp,pq,nkq->nk", j, fixed.covariance(), j)
        kept[name] = {"state": net.state_dict(), "sd": variance.sqrt(), "precision": best.precision}
        print(f"{name}: {size} weights, precision with the largest evidence {best.precision:.4f}")
    torch.save(kept, out)


def peer(of: Path) -> None:
    """Compute the same posteriors with laplace-torch and print the differences."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    kept = torch.load(of)
    for name, (x, y, others) in tables().items():
        net = network(x.shape[1], 3 if name == "classes" else 1)
        net.load_state_dict(kept[name]["state"])
        likelihood = "classification" if name == "classes" else "regression"
        told = {} if name == "classes" else {"sigma_noise": SIGMA}
        la = Laplace(net, likelihood, subset_of_weights="all", hessian_structure="full", prior_precision=1.0, **told)
        torch.set_default_dtype(torch.float64)
        la.fit(DataLoader(TensorDataset(x, y), batch_size=50))
        _, variance = la._glm_predictive_distribution(others)
        sd = variance.diagonal(dim1=1, dim2=2).sqrt().detach()
        apart = (sd / kept[name]["sd"] - 1.0).abs().max()
        value = {
            p: float(la.log_marginal_likelihood(prior_precision=torch.tensor(p)))
            for p in (1.0, kept[name]["precision"])
        }
        grid = np.exp(np.linspace(np.log(1e-2), np.log(1e2), 400))
        best = max(grid, key=lambda p: float(la.log_marginal_likelihood(prior_precision=torch.tensor(p))))
        print(
            f"{name}: largest difference of standard deviations {apart:.1e}; log evidence {value}, best at {best:.4f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ours", "peer"))
    parser.add_argument("--out", type=Path, default=Path("ours.pt"))
    parser.add_argument("--of", type=Path, default=Path("ours.pt"))
    given = parser.parse_args()
    ours(given.out) if given.what == "ours" else peer(given.of)
