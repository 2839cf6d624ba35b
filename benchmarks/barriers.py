"""Errors of networks midway between the cross-fitted networks of a default fit, before and after matching their units.

    python benchmarks/barriers.py boston concrete energy

A manifold of weights that is learned from these networks consists of networks between them. For each table the first
nine tenths of a random order are fitted with default options. The networks are those at the depth of the largest
weight, as functions of one vector of weights. Matching is that of
:mod:`fathomless.families.manifold.matching`. Errors are root mean squares on the other rows, in standard deviations of
the training rows. The data are read from the folder in FATHOMLESS_DATA.
"""

import itertools
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fathomless import UnboundedDepthRegressor
from fathomless.data.datasets import load
from fathomless.families.manifold.matching import match
from fathomless.families.manifold.network import Affine, FlatNetwork
from fathomless.posterior.ensemble import list_members


def flatten(fitted: UnboundedDepthRegressor) -> tuple[FlatNetwork, Tensor]:
    """Return the networks at the depth of the largest weight as a function, and their weights, (R, P)."""
    members: list[Any] = list_members(fitted.model_)
    row = torch.zeros(1, fitted.schema_.width, dtype=fitted.model_.dtype)
    drawn = [member.draw(row, 1) for member in members]
    depth = int(drawn[0].structure[sum(one.log_weight.exp() for one in drawn).argmax()])
    if not depth:
        raise SystemExit("the networks are linear")
    stacks = [
        [*(member.layers[str(layer)][0] for layer in range(1, depth + 1)), member.heads[str(depth)]]
        for member in members
    ]
    first, *_, last = stacks[0]
    widths = tuple(map_.out_features for map_ in stacks[0][:-1])
    network = FlatNetwork(first.in_features, last.out_features, widths, "relu")
    vectors = [network.flat([Affine(map_.weight, map_.bias) for map_ in stack]) for stack in stacks]
    return network, torch.stack(vectors).detach()


def main(tables: list[str]) -> None:
    print("error of           members   average   midway, unmatched   midway, matched")
    for name in tables:
        data = load(name)
        order = np.random.default_rng(0).permutation(len(data.X))
        train, test = np.split(order, [len(order) * 9 // 10])
        X, y = data.X, np.asarray(data.y, dtype=float).ravel()
        fitted = UnboundedDepthRegressor(random_state=0).fit(X[train], y[train])
        network, weights = flatten(fitted)
        rows = torch.as_tensor(fitted._encode(fitted.schema_, fitted._table(X[test], reset=False))).to(weights)
        matched = match(network, weights)
        one, other = map(list, zip(*itertools.combinations(range(len(weights)), 2), strict=True))
        target: Any = fitted.target_
        truth = torch.as_tensor((y[test] - target.mean[0]) / target.scale[0])

        def error(f: Tensor, truth: Tensor = truth) -> Tensor:
            return (f[..., 0].double() - truth).square().mean(-1).sqrt()

        f = network(weights, rows)
        midway = [error(network(0.5 * (w[one] + w[other]), rows)).mean() for w in (weights, matched)]
        values = [error(f).mean(), error(f.mean(0)), *midway]
        print(
            f"{name:<16}"
            + "".join(f"{float(value):>{w}.3f}" for value, w in zip(values, (10, 10, 20, 18), strict=True))
        )


if __name__ == "__main__":
    main(sys.argv[1:] or ["boston", "concrete", "energy"])
