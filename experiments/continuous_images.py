"""MNIST by networks of continuous depth: accuracy and calibration against the number of steps.

There are 10,000 training images and a third as many test images. A network of three convolutions is trained with a
path of weights, and as an ordinary differential equation with constant weights, with the default training of the
estimators. The preset "paper" follows the published code of the paper's journal version, restricted to one flow at one
size of the image. It has two channels of zeros, wider convolutions, drifts of two units, 19 Euler steps, one path per
step, and a divergence multiplied by 10⁻³. The paper's own network has six flows, with images halved between pairs of
them, and is trained for 500 epochs on all images.
"""

import time
from collections.abc import Mapping
from functools import partial
from os import PathLike
from typing import Any

from experiments.follow import class_scores, draw_paths, network, published_network, steps_of, training
from experiments.images import pixels
from experiments.results import Request, Result, Value
from fathomless.families.continuous.dynamics import ConvDynamics
from fathomless.inference.runs.distributed import local_device
from fathomless.inference.variational.svi import fit
from fathomless.posterior.likelihoods import Categorical
from fathomless.system.jobs import run_parts
from fathomless.system.rng import fold_in

__all__ = ["MULTIPLES", "PROTOCOLS", "figure", "run"]

#: Factors on the number of steps of predictions.
MULTIPLES: Mapping[str, float] = {"half": 0.5, "same": 1.0, "double": 2.0, "four": 4.0}
#: Settings of each preset: the convolutions, and the options of the training that differ from the defaults.
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "default": {"network": {"augment": 7, "hidden": (16, 16), "squeeze": 2}, "training": {}},
    "paper": {
        "network": {"augment": 2, "hidden": (32, 32), "squeeze": 2},
        "diffusion": 0.2,
        "rank": 2,
        "steps": 19,
        "training": {
            "draws": 1,
            "temperature": 1e-3,
            "warm_up": 0.0,
            "learning_rate": 1e-3,
            "schedule": "constant",
            "clip_norm": None,
        },
    },
}


def run(request: Request) -> Result:
    """Train both networks; see :class:`experiments.Module`. The data folder is needed.

    The smoke run has three epochs on 300 images.
    """
    full = request.mode == "full"
    own = PROTOCOLS[request.preset]
    settings: dict[str, Any] = {
        "seed": request.seed,
        "rows": 10_000 if full else 300,
        "epochs": 10 if full else 3,
        "batch_size": 128 if full else 20,
        "paths": 16 if full else 2,
        **own,
        "steps": own.get("steps", 0) if full else 5,
        "training": {**own["training"], **({} if full else {"learning_rate": 0.01})},
        "kinds": ["path", "ode"] if full else ["path"],
        "multiples": list(MULTIPLES) if full else ["same", "double"],
    }
    parts = {kind: partial(_part, settings, kind, request.data) for kind in settings["kinds"]}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values = {f"{kind}/{key}": Value(value) for kind, part in results.items() for key, value in part.items()}
    notes = ("log-likelihood in nats per row; mixture_gained is the gain of the mixture of all paths over one path.",)
    return Result("continuous_images", request.mode, request.preset, request.seed, values, settings, seconds, {}, notes)


def _part(settings: Mapping[str, Any], kind: str, data: str | PathLike[str] | None) -> dict[str, float]:
    """Train one network; return its scores on the test images for every number of steps."""
    device = local_device()
    seed = fold_in(settings["seed"], "images", kind)
    train, test = pixels("mnist", settings["rows"], data, device)
    dynamics = ConvDynamics(1, 28, 10, **settings["network"])
    likelihood = Categorical(10).to(device)
    options: dict[str, Any] = {"architecture": lambda *_: dynamics, **({"path__rate": 0.0} if kind == "ode" else {})}
    if "diffusion" in settings and kind == "path":
        units = {"rank": settings["rank"], "steps": settings["steps"]}
        model = published_network(dynamics, settings["diffusion"], **units, seed=seed).to(device)
    else:
        model = network(options, 784, 10, seed).to(device)
    own = {name: settings[name] for name in ("epochs", "batch_size")}
    start = time.process_time()
    schedule = training(options, **own, **settings["training"])
    fit(model, likelihood, train, training=schedule, seed=fold_in(seed, "order"))
    steps = steps_of(model)
    told = model.structure().statistics
    scores = {"cpu_seconds": time.process_time() - start, "steps": float(steps)}
    scores |= {key: told[key] for key in ("path_divergence", "initial_divergence")}
    for name in settings["multiples"]:
        draws = draw_paths(model, test.x, max(1, round(MULTIPLES[name] * steps)), settings["paths"])
        scores |= {f"{name}/{key}": value for key, value in class_scores(draws, likelihood, test.y).items()}
    return {**scores, "lost_at_double": scores["same/accuracy"] - scores["double/accuracy"]}


def figure(result: Result) -> Any:
    """Draw accuracy, log-likelihood and calibration error against the number of steps."""
    from experiments.pictures import draw_step_curves

    return draw_step_curves(
        result, result.settings["kinds"], {name: MULTIPLES[name] for name in result.settings["multiples"]}
    )
