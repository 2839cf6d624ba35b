r"""Fits in stages: each stage is a minimisation that starts from the results of the previous ones.

Each stage has its own loss and a new Adam optimiser, with the learning rate :math:`r\,(1 + \cos \pi t/T)/2` in step t
of T. A stage is divided into rounds. After each round a row is added to the history, and the run can be saved and
resumed bit-identically. The initial state of a stage depends only on the previous results and on its seed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fathomless.inference.runs.driver import ResumableRun, State, drive
from fathomless.inference.runs.run import under
from fathomless.system.errors import DataError
from fathomless.system.progress import Progress
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["Begin", "Stage", "StagedRun", "run_stages"]

_EPSILON = 1e-10  # losses are divided by the number of rows, so it must be far below the usual 1e-8


class Stage(ABC):
    """Minimisation of one loss.

    Parameters
    ----------
    steps : int
        Number of steps T, at least the number of rounds.
    clip_norm : float, optional
        Norm to which gradients are clipped.
    """

    def __init__(self, steps: int, clip_norm: float | None = None) -> None:
        self.steps = steps
        self.clip_norm = clip_norm

    @abstractmethod
    def groups(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        """Return groups of tensors to optimise, leaves with gradients, each with its learning rate r."""

    @abstractmethod
    def loss(self, share: float, generator: torch.Generator) -> Tensor:
        """Return the loss, a differentiable scalar, after a share 0 <= t/T < 1 of the steps."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return metrics for the history; synchronises with the device. Raise an error if the stage has diverged."""

    @abstractmethod
    def finish(self) -> dict[str, Tensor]:
        """Return the results of the stage, by name."""


#: Builds a stage from the results of previous stages, named "stage/tensor".
Begin = Callable[[Mapping[str, Tensor]], Stage]


class StagedRun(ResumableRun):
    """State of a fit in stages between two rounds, sufficient to resume it.

    Parameters
    ----------
    plan : mapping of str to Begin
        Stages by name, in order.
    seed : int
        Seed of all random draws.
    rounds : int
        Number of rounds per stage.
    device : torch.device, optional
        Device of random draws.

    Attributes
    ----------
    found : dict of str to Tensor
        Results of finished stages, named "stage/tensor".
    epoch, step : int
        Numbers of rounds and steps done.
    history : list of dict
        One row per round: epoch, step, index of the stage, and its metrics.
    stop, pause : bool
        As for :class:`~fathomless.inference.runs.run.Run`; a run that is stopped finishes the current stage early.
    """

    def __init__(
        self, plan: Mapping[str, Begin], seed: int, rounds: int = 10, device: torch.device | str = "cpu"
    ) -> None:
        self.plan = dict(plan)
        self.seed = seed
        self.rounds = rounds
        self.device = device
        self.found: dict[str, Tensor] = {}
        self.history: list[dict[str, float]] = []
        self.epoch = self.step = 0
        self.stop = self.pause = False
        self._stage: Stage | None = None

    @property
    def epochs(self) -> int:
        """Total number of rounds."""
        return self.rounds * len(self.plan)

    def advance(self) -> None:
        """Do one round; begin a stage before its first round, and finish it after its last."""
        place, done = divmod(self.epoch, self.rounds)
        if done == 0:
            self._begin(place)
        assert self._stage is not None
        steps = self._stage.steps
        for step in range(steps * done // self.rounds, steps * (done + 1) // self.rounds):
            self._move(self._stage, step)
        self.epoch += 1
        self.history.append({"epoch": self.epoch, "step": self.step, "stage": place, **self._stage.metrics()})
        if done + 1 == self.rounds:
            self.conclude()

    def _begin(self, place: int) -> None:
        name, begin = list(self.plan.items())[place]
        self._generator = as_generator(fold_in(self.seed, name), device=self.device)
        self._stage = begin(self.found)
        groups = [{"params": list(leaves), "lr": rate} for leaves, rate in self._stage.groups()]
        self._optimizer = torch.optim.Adam(groups, eps=_EPSILON, fused=True)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]

    def _move(self, stage: Stage, step: int) -> None:
        share = step / stage.steps
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = 0.5 * rate * (1.0 + math.cos(math.pi * share))
        self._optimizer.zero_grad()
        stage.loss(share, self._generator).backward()
        if stage.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._leaves(), stage.clip_norm)
        self._optimizer.step()
        self.step += 1

    def conclude(self) -> None:
        """Finish the current stage, and store its results."""
        if self._stage is not None:
            name = list(self.plan)[(self.epoch - 1) // self.rounds]
            self.found |= {f"{name}/{key}": value.detach() for key, value in self._stage.finish().items()}
        self._stage = None

    def _leaves(self) -> list[Tensor]:
        return [leaf for group in self._optimizer.param_groups for leaf in group["params"]]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state by name."""
        state = {f"found/{name}": value for name, value in self.found.items()}
        if self._stage is not None:
            state["generator"] = self._generator.get_state()
            for i, leaf in enumerate(self._leaves()):
                state[f"leaf/{i}"] = leaf.detach()
                state |= {f"optimizer/{i}/{key}": value for key, value in self._optimizer.state[leaf].items()}
        return state

    def meta(self) -> dict[str, Any]:
        """Return the rest of the state as JSON values."""
        return {"epoch": self.epoch, "step": self.step, "history": self.history, "stop": self.stop}

    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore the state from the values of :meth:`tensors` and :meth:`meta`."""
        tensors = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        self.found = under("found", tensors)
        self.epoch = meta["epoch"]
        self.step = meta["step"]
        self.history = list(meta["history"])
        self.stop = meta["stop"]
        if "generator" not in tensors:  # saved between two stages
            return
        self._begin(self.epoch // self.rounds)
        self._generator.set_state(tensors["generator"].cpu())
        with torch.no_grad():
            for i, leaf in enumerate(self._leaves()):
                leaf.copy_(tensors[f"leaf/{i}"])
                self._optimizer.state[leaf] = under(f"optimizer/{i}", tensors)


@enable_gradients()
def run_stages(
    plan: Mapping[str, Begin],
    seed: int,
    *,
    rounds: int = 10,
    device: torch.device | str = "cpu",
    callbacks: Sequence[Callable[[Any], None]] = (),
    progress: Progress | None = None,
    resume: State | None = None,
) -> StagedRun:
    """Run all stages.

    Parameters
    ----------
    plan, seed, rounds, device
        As for :class:`StagedRun`.
    callbacks : sequence of callables
        Called with the run after every round, such as :class:`~fathomless.inference.runs.callbacks.Checkpoint`.
    progress : Progress, optional
        Progress display.
    resume : (tensors, meta), optional
        State of a run with the same plan and seed, to resume from.

    Raises
    ------
    DataError
        If a callback stops the run before its last stage, when there is no posterior yet.
    PausedError
        If a callback pauses the run before the last round.
    """
    run = StagedRun(plan, seed, rounds, device)
    if resume is not None:
        run.resume(*resume)
    drive(run, run.advance, callbacks=callbacks, progress=progress)
    if run.epoch <= run.epochs - run.rounds:
        name = list(run.plan)[(run.epoch - 1) // run.rounds]
        raise DataError(
            f"the fit was stopped in stage {name!r}, before the last stage; let it run, or pause it instead"
        )
    run.conclude()
    return run
