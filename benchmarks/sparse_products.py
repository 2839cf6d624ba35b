"""Products of sparse weights with a batch: dense, compressed rows of torch, compressed rows of this library.

    python benchmarks/sparse_products.py

Each number is the CPU time of the forward pass of a layer in microseconds on one thread, the median over interleaved
repetitions. The last column is the ratio of "dense" to "ours"; above 1 the implementation of this library is faster.
"""

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fathomless.families.sparse.plain import CompressedLinear

SIZES = ((400, 784), (600, 400), (200, 200), (64, 64))  # outputs, inputs
DENSITIES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
BATCHES = (1, 10, 100, 1000)
REPETITIONS, LEAST = 25, 2e-3  # number of timings, and seconds of each


def layers(outputs: int, inputs: int, density: float) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the same sparse layer in all forms."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator)
    weight = weight * (torch.rand(outputs, inputs, generator=generator) < density)
    dense = nn.Linear(inputs, outputs).requires_grad_(False)
    dense.weight.copy_(weight)
    rows = weight.to_sparse_csr()
    product = torch.sparse_csr_tensor(
        rows.crow_indices().int(), rows.col_indices().int(), rows.values(), rows.shape, check_invariants=True
    )
    return {
        "dense": dense,
        "torch": lambda x: torch.addmm(dense.bias[:, None], product, x.mT).mT,
        "ours": CompressedLinear.of(weight, dense.bias.detach()),
    }


def times(forms: dict[str, Callable[[Tensor], Tensor]], x: Tensor) -> dict[str, float]:
    """Return the microseconds of each form."""
    calls = {}
    for name, form in forms.items():
        assert torch.allclose(form(x), forms["dense"](x), atol=1e-4), name
        start = time.perf_counter()
        form(x)
        calls[name] = max(1, int(LEAST / (time.perf_counter() - start)))
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(REPETITIONS):
        for name, form in forms.items():
            start = time.process_time()
            for _ in range(calls[name]):
                form(x)
            taken[name].append((time.process_time() - start) / calls[name] * 1e6)
    return {name: statistics.median(values) for name, values in taken.items()}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, python {platform.python_version()}, one thread, float32; microseconds")
    print(f"{'outputs x inputs':<18}{'batch':>6}{'density':>9}{'dense':>10}{'torch':>10}{'ours':>10}{'dense/ours':>12}")
    for outputs, inputs in SIZES:
        for batch in BATCHES:
            x = torch.randn(batch, inputs, generator=torch.Generator().manual_seed(1))
            for density in DENSITIES:
                t = times(layers(outputs, inputs, density), x)
                figures = "".join(f"{t[name]:>10.1f}" for name in ("dense", "torch", "ours"))
                size = f"{outputs} x {inputs}"
                print(f"{size:<18}{batch:>6}{density:>9}{figures}{t['dense'] / t['ours']:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
