"""Digests of the results of every estimator, to check that a change of the code does not change any result.

``python benchmarks/digests.py > before.json``, then ``python benchmarks/digests.py --against before.json``.

For each public estimator and some of its options, on three tables, there are digests of the predictions, the
decomposition of the uncertainty, the training history, the last checkpoint, the saved folder, and the exports. The
bytes depend on the machine, on the version of torch, and on the number of threads (here one).
"""

import argparse
import hashlib
import json
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from sklearn import datasets

import fathomless
from fathomless.estimators.values import ELBO, Adam, CheckpointOptions, Restarts

EPOCHS = 25
MORE: dict[str, list[dict[str, Any]]] = {  # options to run in addition to the defaults
    "UnboundedDepth": [
        {"n_restarts": 3},
        {"n_restarts": Restarts(count=2, keep="average")},
        {"weights": "meanfield", "weight_draws": 4},
        {"weights": "sparse", "weight_draws": 4},
        {"structure_from": ELBO(optimizer="natural"), "depth_law": "stick_breaking"},
        {"architecture": "transformer", "width": 8, "optimizer": Adam(clip_norm=1.0)},
    ],
    "SparseBayes": [
        {"posterior": "flow"},
        {"posterior": "slab"},
        {"posterior": "mnf"},
        {"posterior": "relaxed", "predict_by": "median"},
        {"n_restarts": Restarts(count=2, keep="average"), "validation_fraction": 0.2},
        {"prior_inclusion": "learned", "weight_prior": "learned", "architecture": "skip"},
    ],
}


QUICK: dict[str, dict[str, Any]] = {  # families without epochs, and families with long trainings
    "IndianChefs": {"chains": 2, "sweeps": 40, "states": 10},
    "ProjectedBayes": {"width": 8, "candidates": 10, "candidate_steps": 60, "decoder_steps": 40, "latent_steps": 40},
    "SWAGNetwork": {"epochs": EPOCHS, "width": 16, "passes": 16},
    "SubspaceNetwork": {"epochs": EPOCHS, "width": 16, "passes": 16},
}


def tables(task: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield three tables for a task: two of scikit-learn, and a frame with categories, dates and missing values."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=90),
            "kind": rng.choice(["a", "b", "c"], 90),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, 90), unit="D"),
        }
    )
    frame.loc[::7, "size"] = np.nan
    signal = frame["size"].fillna(0.0) + (frame["kind"] == "a")
    if task == "Classifier":
        yield "iris", *datasets.load_iris(return_X_y=True)
        yield "wine", *datasets.load_wine(return_X_y=True)
        yield "frame", frame, np.where(signal > 0.3, "yes", "no")
    else:
        yield "diabetes", *datasets.load_diabetes(return_X_y=True)
        yield "linnerud", *datasets.load_linnerud(return_X_y=True)
        yield "frame", frame, np.asarray(signal + 0.1 * rng.normal(size=90))


def digest(*parts: Any) -> str:
    """Return a digest of arrays, tensors, text and plain JSON."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().contiguous().numpy()
        if isinstance(part, np.ndarray) and part.dtype != object:
            found.update(f"{part.dtype}{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        else:
            found.update(json.dumps(part if not isinstance(part, np.ndarray) else part.tolist()).encode())
    return found.hexdigest()[:16]


def folder(path: Path) -> dict[str, str]:
    """Return digests of the tensors and the metadata of a saved folder."""
    meta = json.loads((path / "manifest.json").read_text())["meta"]
    tensors = safetensors.torch.load_file(next(path.glob("tensors-*.safetensors")))
    return {
        "tensors": digest(*(part for name in sorted(tensors) for part in (name, tensors[name]))),
        "meta": digest(json.dumps(meta, sort_keys=True).replace(str(path), "")),
    }


def exports(estimator: Any) -> Iterator[tuple[str, str]]:
    """Yield digests of the exported forms of a fitted estimator."""
    model = estimator.model_
    if type(estimator).__name__.startswith("SparseBayes") and len(list(model.children())) == 1:
        try:
            small = estimator.to_sparse().network
        except (ValueError, AttributeError) as error:  # networks that are not a chain of layers
            yield "sparse", type(error).__name__
        else:
            yield "sparse", digest(*(value for _, value in sorted(small.state_dict().items())))
    if type(model).__name__ == "UnboundedDepth" and not model.stochastic:
        try:
            from fathomless.families.depth import deploy

            small = deploy.compress(model, 0.01)
            point = deploy.point_depth(model, model.depth)
        except ImportError:  # earlier versions
            small = model.compress(0.01)
            point = model.point_depth(model.depth)
        yield "compressed", digest(*(value for _, value in sorted(small.state_dict().items())))
        yield "point", digest(*point.state_dict().values())


def compute_digests(name: str, options: dict[str, Any], X: Any, y: Any) -> dict[str, str]:
    """Fit one estimator and return the digests of its results."""
    with tempfile.TemporaryDirectory() as home:
        checkpoint, saved = Path(home) / "checkpoint", Path(home) / "saved"
        quick = next((own for family, own in QUICK.items() if name.startswith(family)), {"epochs": EPOCHS, "width": 16})
        start = {**quick, "random_state": 0, **options}
        if name.startswith("SparseBayes"):
            start["weight_draws"] = 16  # fixed, independent of the default
        estimator = getattr(fathomless, name)(**start, checkpoint=CheckpointOptions(checkpoint, seconds=0)).fit(X, y)
        estimator.save(saved)
        if name.endswith("Density"):
            return {"density": digest(estimator.score_samples(X)), **folder(saved)}
        mixture = estimator.predict_dist(X)
        split = mixture.uncertainty()
        found = {
            "predict": digest(np.asarray(estimator.predict(X)).astype(str)),
            "density": digest(mixture.log_prob(y)),
            "uncertainty": digest(split.noise, split.weights, split.structure, split.total),
            "total": digest(split.total),
            "history": digest(estimator.history_),
            "structure": digest(estimator.structure_.statistics, estimator.structure_.summary),
        }
        for what, path in (("checkpoint", checkpoint), ("saved", saved)):
            found |= {f"{what} {part}": value for part, value in folder(path).items()}
        return found | dict(exports(estimator))


def digest_fit(fit: tuple[str, dict[str, Any], str]) -> tuple[str, dict[str, str]]:
    """Return the key and the digests of a fit; one thread."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, options, wanted = fit
    task = "Classifier" if name.endswith("Classifier") else "Regressor"
    X, y = next((X, y) for table, X, y in tables(task) if table == wanted)
    try:
        return f"{name} {options} {wanted}", compute_digests(name, options, X, y)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        return f"{name} {options} {wanted}", {"error": digest(str(error))}


def main() -> int:
    """Print the digests as JSON, or compare them with those of another run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="file with the output of another run")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each (default: 1)")
    args = parser.parse_args()
    fits = []
    for name in sorted(name for name in fathomless.__all__ if hasattr(getattr(fathomless, name), "fit")):
        task = "Classifier" if name.endswith("Classifier") else "Regressor"
        for options in [{}, *MORE.get(name.removesuffix(task), [])]:
            fits += [(name, options, table) for table, _, _ in tables(task)]
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        found = dict(pool.map(digest_fit, fits))
    if args.against is None:
        print(json.dumps(found, indent=1))
        return 0
    before = json.loads(args.against.read_text())
    different = 0
    for key in sorted(before.keys() | found.keys()):
        old = before.get(key, {})
        new = found.get(key, {})
        changed = sorted(part for part in old.keys() | new.keys() if old.get(part) != new.get(part))
        different += bool(changed)
        if changed:
            print(f"{key}: {', '.join(changed)}")
    print(f"{len(found)} fits, {different} with differences")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
