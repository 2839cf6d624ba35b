"""Run cases on the simulated accelerator, in a process of its own: one JSON line for each."""

import json
import sys
from dataclasses import replace
from typing import Any

import torch
from accelerator import cases, run_case

from battery.cases import CASES, Case
from fathomless.families.baselines import trajectories
from fathomless.families.manifold import sampling
from fathomless.families.registry import options
from fathomless.inference.out_of_fold import recalibration

STEPS = ("fit", "predict", "methods", "save", "processor")
RECALIBRATION = 6  # steps of its networks
CHAIN = 20  # states of chains in latent spaces and in subspaces
#: Steps and counts of the families that have them.
SHORT = {"candidate_steps": 10, "decoder_steps": 10, "latent_steps": 10, "passes": 8, "networks": 4}
#: Cases with further steps: one for each way to keep a run, and for exports, made of copies on the processor.
RESUMED = ("depth-regression", "sparse-classification", "continuous-classification", "manifold-classification")
RESUMED += ("ensemble-classification", "finite-regression")
#: Like others that run, and slow on this device; the script for real ones runs them.
SLOW = ("subspace-regression", "depth-natural-regression", "graph-classification", "depth-sparse-average-regression")
SLOW += ("continuous-average-classification", "continuous-learned-classification", "depth-hmc-student-regression")
SLOW += ("continuous-lowrank-classification", "continuous-random-elbo-classification", "depth-hmc-classification")
SLOW += ("manifold-dimensions-regression",)
MODULES = ("depth-hmc-regression", "finite-regression")


def chosen() -> list[Case]:
    """Return the cases that run here: the plain ones and modes of their own in each task, of variants one task.

    Each operation of the device is some hundred times as slow as one of torch; paths are slowest with numbers.
    """
    found = []
    for case in cases():
        variant = case in CASES and not case.plain
        one = "classification" if case.family.name == "continuous" else "regression"
        if (case.task == one or not variant) and case.name not in SLOW:
            found.append(_quicker(case))
    return found


def _quicker(case: Case) -> Case:
    """Return a case with less to do."""
    least: dict[str, Any] = {"epochs": 4, "weight_draws": 2 + 2 * (case.family.name != "continuous")}
    if case.name not in RESUMED:  # a pause is where the history gets a row, which needs some steps
        least["batch_size"] = 48
        least["epochs"] = 2
    if case.family.name == "sparse":  # chosen among candidates once
        least["temperature"] = (1.0, 0.1) if case.name == "sparse-classification" else 0.5
    stages = {name: value for name, value in SHORT.items() if name in case.options}
    known = options(case.family, case.task)
    return replace(case, options={**{k: v for k, v in least.items() if k in known}, **case.options, **stages})


def steps(case: Case) -> tuple[str, ...]:
    """Return the steps of a case."""
    more = (("resume",) if case.name in RESUMED else ()), (("module",) if case.name in MODULES else ())
    return (*STEPS, *more[0], *more[1])


def main(names: list[str]) -> None:
    """Print a line for each case whose name is among those given, or for every one."""
    import simulated

    recalibration._MOST_STEPS = RECALIBRATION
    sampling.sample_latent.__defaults__ = (CHAIN,)
    trajectories._WARM_UP = CHAIN
    assert torch.Generator is simulated.Generator  # type: ignore[comparison-overlap]
    torch.set_num_threads(1)
    for case in chosen():
        if not names or case.name in names:
            print(json.dumps(run_case(case, "sim", 1e-6, steps(case))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
