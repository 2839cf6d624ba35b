"""Weight manifold of a large network: accuracy and cost of the decoders.

    python benchmarks/large_manifolds.py                        all decoders, one after another
    python benchmarks/large_manifolds.py --decoders linear,chunks --rows 2000 --steps 400

A convolutional network with a million weights classifies ten classes of images (CIFAR-10, halved in size, from the
folder in FATHOMLESS_DATA; a part of the training images, 2,000 test images). Twenty networks are snapshots of one
trajectory. Then a decoder is trained and the posterior over its latent space is fitted, with each kind of decoder:
principal components ("linear"), one map ("whole"), one map for each layer ("layers"), and one map for all chunks of
weights ("chunks"). The output is the number of parameters of the decoder, the size of the saved folder, the share of
the variance of the candidates' weights that the decoder does not explain, the seconds, and the peak memory so far. For
the test images it has accuracy, mean log density and calibration error. Mean log densities of training images are given
for the snapshots and for the decoded snapshots, and that of held-out images for all snapshots.
"""

import argparse
import resource
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from fathomless import ProjectedBayesClassifier
from fathomless.data.datasets import load
from fathomless.posterior.metrics import expected_calibration_error

KINDS: dict[str, dict[str, Any]] = {
    "linear": {"decoder_width": 0},
    "whole": {"decoder_map": "whole"},
    "layers": {"decoder_map": "layers"},
    "chunks": {"decoder_map": "chunks"},
}


def network(inputs: int, outputs: int) -> nn.Module:
    """Return a network of three convolutions and three linear maps for images of 3 x 16 x 16."""
    assert inputs == 3 * 16 * 16
    return nn.Sequential(
        nn.Unflatten(1, (3, 16, 16)),
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 1024), nn.ReLU(),
        nn.Linear(1024, 384), nn.ReLU(),
        nn.Linear(384, outputs),
    )  # fmt: skip


def images(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training and test images as rows of 768 numbers, with their classes."""
    data = load("cifar10")
    train, test = data.splits[0]

    def halved(which: np.ndarray) -> np.ndarray:
        x = torch.as_tensor(np.asarray(data.X[which])).float() / 255.0
        x = x.permute(0, 3, 1, 2) if x.shape[-1] == 3 else x
        return nn.functional.avg_pool2d(x, 2).flatten(1).numpy()

    some, held = np.asarray(train)[:rows], np.asarray(test)[:2000]
    return halved(some), np.asarray(data.y)[some], halved(held), np.asarray(data.y)[held]


def format_scores(p: np.ndarray, y: np.ndarray) -> str:
    """Return accuracy, mean log density and calibration error of probabilities (N, K) as text."""
    log_p = np.log(p[np.arange(len(y)), y])
    ece = float(expected_calibration_error(y, p))
    error = log_p.std() / len(y) ** 0.5
    return f"accuracy {(p.argmax(1) == y).mean():.3f}, log density {log_p.mean():.3f} ± {error:.3f}, ECE {ece:.3f}"


def bytes_of(folder: Path) -> int:
    """Return the size of a folder in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*"))


def main() -> None:
    """Fit every kind of decoder and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoders", default=",".join(KINDS))
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=2000, help="number of steps of the trajectory")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    x, y, test, truth = images(args.rows)
    print(f"{sum(p.numel() for p in network(768, 10).parameters()):,} weights, {len(x):,} images", flush=True)
    for name in args.decoders.split(","):
        marks: list[float] = []
        begin = time.perf_counter()
        fitted = ProjectedBayesClassifier(
            architecture=network,
            candidates=20,
            snapshots=20,
            candidate_steps=args.steps,
            candidate_rate=1e-3,
            weight_prior=1.0,  # with the default, 1/√fan-in, the prior of a million weights outweighs 5,000 images
            latent_dim=5,
            decoder_steps=200,
            components=4,
            latent_steps=60,
            training_draws=4,
            random_state=0,
            callbacks=[lambda _: marks.append(time.perf_counter())],  # noqa: B023
            **KINDS[name],
        ).fit(x, y)
        done = time.perf_counter()
        stage = [row["stage"] for row in fitted.history_]
        candidates, decoder = (marks[stage.index(s)] for s in (20, 21))
        with TemporaryDirectory() as folder:
            size = bytes_of(Path(fitted.save(Path(folder) / "model")))
        numbers = sum(p.numel() for p in fitted.model_.decoder.parameters())
        gate = fitted.decoder_gate_
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{name}: decoder with {numbers:,} parameters, {size / 2**20:.0f} MiB saved, "
            f"unexplained share of the variance of the weights {gate['reconstruction']:.3f}; "
            f"{candidates - begin:.0f} s to the first round of the decoder, {decoder - candidates:.0f} s for that, "
            f"{done - decoder:.0f} s for the posterior; peak {peak:.1f} GiB",
            flush=True,
        )
        print(f"  {format_scores(np.asarray(fitted.predict_proba(test)), truth)}", flush=True)
        print(
            f"  training log density of candidates {gate['of_candidates']:.3f}, decoded {gate['log_likelihood']:.3f}; "
            f"held-out log density {fitted.validation_score_:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
