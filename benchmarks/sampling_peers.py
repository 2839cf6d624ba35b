"""Comparison of sampled networks with NumPyro's NUTS on the same model and rows.

    python benchmarks/sampling_peers.py ours --out ours.npz                          with this library
    python benchmarks/sampling_peers.py numpyro --of ours.npz --out numpyro.npz      in an environment with NumPyro
    python benchmarks/sampling_peers.py compare --of ours.npz --out numpyro.npz      with this library

The training rows are 300 of scikit-learn's diabetes. The network has one hidden layer of tanh units, scales of inputs,
layers and biases as in ``fathomless.inference.mcmc.scales``, and Gaussian noise. NumPyro updates standardised weights,
scales and noise jointly; this library has separate Gibbs steps for scales and noise. The comparison has the mean and
the standard deviation of f at the 142 other rows, in units of the combined Monte Carlo standard errors, and the
effective sample size of f per second (median over rows). Times include warm-up and, for NumPyro, compilation. Each uses
one thread.
"""

import argparse
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np


def ours(out: Path, sweeps: int, chains: int) -> None:
    """Fit with this library, with fixed depth and Gaussian noise."""
    import torch
    from sklearn.datasets import load_diabetes

    from fathomless import HMC, UnboundedDepthRegressor

    torch.set_num_threads(1)
    X, y = load_diabetes(return_X_y=True, scaled=False)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    X, y = (X - X[:300].mean(0)) / X[:300].std(0), (y - y[:300].mean()) / y[:300].std()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = UnboundedDepthRegressor(
            weights=HMC(sweeps=sweeps, chains=chains, states=200),
            depth_law=1,
            likelihood="gaussian",
            random_state=0,
        ).fit(X[:300], y[:300])
    model: Any = fitted.model_
    draws = model.draw(torch.from_numpy(X[300:]).float())
    outputs = draws.f[..., 0].double().numpy()
    told = fitted.sampling_[1]
    np.savez(
        out,
        X=X,
        y=y,
        width=next(model._network(1, 1).parameters()).shape[0],
        f=outputs.reshape(chains, -1, len(X) - 300),
        seconds=told["seconds"],
        noise=model.noise_scale[:, 0].double().numpy().reshape(chains, -1),
    )
    print(f"{told['seconds']:.1f} s, R-hat {told['rhat']:.2f} (median {told['rhat_median']:.2f}), {fitted.structure_}")


def numpyro(of: Path, out: Path, draws: int, chains: int) -> None:
    """Sample the same model with NUTS."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    given = np.load(of)
    X = jnp.asarray(given["X"], jnp.float32)
    y = jnp.asarray(given["y"], jnp.float32)
    width = int(given["width"])
    columns = X.shape[1]

    def network(v: dict[str, Any], alpha: dict[str, Any], x: Any) -> Any:
        hidden = jnp.tanh(
            x @ (v["in"] / jnp.sqrt(columns**0.5 * alpha["in"])[:, None]) + v["b1"] / jnp.sqrt(alpha["b1"])
        )
        return hidden @ v["w2"] / jnp.sqrt(alpha["w2"] * width) + v["b2"] / jnp.sqrt(alpha["b2"])

    sizes = {"in": (columns, width), "b1": (width,), "w2": (width,), "b2": ()}

    def model() -> None:
        alpha = {
            name: numpyro.sample(f"alpha_{name}", dist.Gamma(1.0, 0.5).expand([columns] if name == "in" else []))
            for name in sizes
        }
        v = {
            name: numpyro.sample(f"v_{name}", dist.Normal(0.0, 1.0).expand(list(shape)))
            for name, shape in sizes.items()
        }
        tau = numpyro.sample("tau", dist.Gamma(1.0, 0.01))
        numpyro.sample("y", dist.Normal(network(v, alpha, X[:300]), 1.0 / jnp.sqrt(tau)), obs=y[:300])
        numpyro.deterministic("f", network(v, alpha, X[300:]))

    budget = {"num_warmup": draws, "num_samples": draws, "num_chains": chains}
    sampler = MCMC(NUTS(model), **budget, chain_method="sequential", progress_bar=False)
    began = time.perf_counter()
    sampler.run(jax.random.PRNGKey(0), extra_fields=("num_steps",))
    seconds = time.perf_counter() - began
    found = sampler.get_samples(group_by_chain=True)
    steps = int(np.asarray(sampler.get_extra_fields()["num_steps"]).sum())
    np.savez(out, f=np.asarray(found["f"]), noise=np.asarray(found["tau"]) ** -0.5, seconds=seconds, steps=steps)
    print(f"{seconds:.1f} s, {steps:,} leapfrog steps after warm-up")


def compare(of: Path, out: Path) -> None:
    """Print the differences between the two samplers."""
    from fathomless.inference.mcmc.diagnostics import diagnose

    both = [np.load(of), np.load(out)]
    told = [[diagnose(one["f"][:, :, point]) for point in range(one["f"].shape[2])] for one in both]
    for name, one, rows in zip(("ours", "NumPyro"), both, told, strict=True):
        ess, rhat = (np.array([getattr(row, key) for row in rows]) for key in ("ess_bulk", "rhat"))
        noise = diagnose(one["noise"])
        print(
            f"{name:8} f at {len(rows)} rows: R-hat, 95th percentile {np.percentile(rhat, 95):.3f}; effective size "
            f"{np.median(ess):.0f} in {float(one['seconds']):.0f} s, {np.median(ess) / float(one['seconds']):.2f} per "
            f"second; noise {one['noise'].mean():.4f} ± {noise.mcse:.4f}"
        )
    mean, sd, error = (
        [np.array([getattr(row, key) for row in rows]) for rows in told] for key in ("mean", "sd", "mcse")
    )
    z = (mean[0] - mean[1]) / np.hypot(*error)
    ratio, apart = sd[0] / sd[1], np.abs(mean[0] - mean[1]).mean() / sd[1].mean()
    print(
        f"means: average difference {apart:.3f} sd, in standard errors: root mean "
        f"square {math.sqrt((z**2).mean()):.2f}, largest {np.abs(z).max():.2f} of {len(z)}; ratio of sd of f: "
        f"mean {ratio.mean():.3f}, from {ratio.min():.2f} to {ratio.max():.2f}"
    )


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("who", choices=("ours", "numpyro", "compare"))
    parser.add_argument("--of", type=Path, help="output of `ours`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--draws", type=int, default=1000, help="draws of each NumPyro chain, after as many warm-up draws"
    )
    parser.add_argument(
        "--sweeps", type=int, default=2000, help="sweeps of each chain of this library; the first half is warm-up"
    )
    parser.add_argument("--chains", type=int, default=8)
    args = parser.parse_args()
    if args.who == "ours":
        ours(args.out, args.sweeps, args.chains)
    elif args.who == "numpyro":
        numpyro(args.of, args.out, args.draws, args.chains)
    else:
        compare(args.of, args.out)


if __name__ == "__main__":
    main()
