"""Training steps that are recorded on a GPU and then replayed; see :mod:`fathomless.system.recording`.

A recorded step reads its rows, the learning rates and the temperature from fixed tensors, which are filled before each
step. It is valid as long as the structure of the model and its trained parameters do not change, and for one number of
rows. Steps are recorded if they draw no random numbers (:class:`~fathomless.posterior.capabilities.Recordable`), with
Adam, in one process, and if the structure is searched with held-out rows: the posterior over structure is then constant
between two phases of the search. All other steps are taken as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.inference.runs.run import Run
from fathomless.posterior.capabilities import Recordable
from fathomless.system.recording import Replayed, can_record, use_rate_tensors

__all__ = ["RecordedSteps"]

#: A step of the training: rows and temperature to the parts of the bound.
Step = Callable[[Rows, float | Tensor], list[Tensor]]


@dataclass(eq=False)
class _Recorded:
    """Step for batches of one size, with its rows and everything else that it reads."""

    rows: Rows
    step: Replayed
    kept: Any = None  # tensors whose memory must not be used again


class RecordedSteps:
    """Training steps of a run, which are recorded where that is possible.

    Parameters
    ----------
    run : Run
        State of the training.
    step : callable
        Takes a step: rows and temperature to the parts of the bound, on the device.
    """

    def __init__(self, run: Run, step: Step) -> None:
        self.run = run
        self.step = step
        self.device = run.model.device
        t = run.training
        usual = run.search is not None and run.partners.count == 1 and t.optimizer == "adam" and not t.mixed
        self.records = usual and isinstance(run.model, Recordable) and can_record(self.device)
        self.temperature = torch.tensor(1.0, dtype=torch.float64, device=self.device)
        self.key: Any = None
        self.trained: list[nn.Parameter] = []
        self.recorded: dict[int, _Recorded] = {}  # by the number of rows of a batch
        if self.records:
            use_rate_tensors(run.optimizer, self.device)

    def refresh(self) -> None:
        """Drop the recorded steps if the structure or the trained parameters have changed."""
        model = self.run.model
        if not self.records or not isinstance(model, Recordable):
            return
        key = model.step_key()
        trained = [p for p in self.run.named_parameters().values() if p.requires_grad]
        if key != self.key or not _are_same(trained, self.trained):
            self.key, self.trained, self.recorded = key, trained, {}

    def take(self, batch: Rows, temperature: float) -> Sequence[Tensor]:
        """Take a step; return the parts of the bound."""
        model = self.run.model
        if self.key is None or not isinstance(model, Recordable):
            return self.step(batch, temperature)
        if len(batch) not in self.recorded:
            rows = Rows(batch.x.clone(), batch.y.clone(), None if batch.weight is None else batch.weight.clone())
            call = Replayed(lambda: self.step(rows, self.temperature), self.device)
            self.recorded[len(batch)] = _Recorded(rows, call)
        found = self.recorded[len(batch)]
        if not found.step.recorded:
            found.kept = model.constants()  # computed now, so that they are not part of the recording
        self.temperature.fill_(temperature)
        for fixed, value in zip(_tensors(found.rows), _tensors(batch), strict=True):
            fixed.copy_(value)
        return found.step()


def _tensors(rows: Rows) -> Sequence[Tensor]:
    return [part for part in (rows.x, rows.y, rows.weight) if part is not None]


def _are_same(ours: Sequence[nn.Parameter], theirs: Sequence[nn.Parameter]) -> bool:
    return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))
