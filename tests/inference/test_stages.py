"""Stages: each is minimised from what was found before; a run that is taken up again ends in the same bytes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fathomless.families.manifold.stages import Stage, StagedRun, run_stages
from fathomless.system.errors import DataError, PausedError


class Bowl(Stage):
    """Half the squared distance to a centre, with noise on the gradient."""

    def __init__(self, centre: Tensor, noise: float = 0.0, steps: int = 40) -> None:
        super().__init__(steps)
        self.centre, self.noise, self.at = centre, noise, torch.zeros_like(centre, requires_grad=True)

    def groups(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        return [([self.at], 0.3)]

    def loss(self, share: float, generator: torch.Generator) -> Tensor:
        shift = self.noise * torch.randn(self.centre.shape, generator=generator)
        return 0.5 * (self.at - self.centre - shift).square().sum()

    def metrics(self) -> dict[str, float]:
        return {"distance": float((self.at.detach() - self.centre).norm())}

    def finish(self) -> dict[str, Tensor]:
        return {"at": self.at}


def plan(noise: float = 0.5, steps: int = 40) -> dict[str, Any]:
    def second(found: Mapping[str, Tensor]) -> Stage:
        return Bowl(2.0 * found["first/at"], noise, steps)

    return {
        "first": lambda found: Bowl(torch.tensor([1.0, -2.0]), noise, steps),
        "second": second,
    }


def test_a_stage_starts_from_what_was_found_before() -> None:
    run = run_stages(plan(noise=0.0, steps=200), 0, rounds=4)
    torch.testing.assert_close(run.found["first/at"], torch.tensor([1.0, -2.0]), atol=0.05, rtol=0)
    torch.testing.assert_close(run.found["second/at"], 2.0 * run.found["first/at"], atol=0.1, rtol=0)
    assert set(run.found) == {"first/at", "second/at"}
    assert [row["stage"] for row in run.history] == [0] * 4 + [1] * 4
    assert run.step == 400
    assert all(math.isfinite(value) for row in run.history for value in row.values())


def test_the_rate_falls_as_a_cosine_and_adam_starts_anew() -> None:
    """On a constant slope Adam moves by the rate in every step: the sum of ½ r (1 + cos πt/T) is r (T + 1)/2."""

    class Slope(Bowl):
        def loss(self, share: float, generator: torch.Generator) -> Tensor:
            return self.at.sum()

    run = run_stages({"a": lambda _: Slope(torch.zeros(1)), "b": lambda _: Slope(torch.zeros(1))}, 0, rounds=3)
    for name in ("a", "b"):
        assert float(run.found[f"{name}/at"]) == pytest.approx(-0.3 * 41 / 2, rel=1e-5)


@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_run_that_is_taken_up_again_ends_in_the_same_bytes(at: int) -> None:
    """In each stage, and between two of them."""
    whole = run_stages(plan(), 7, rounds=4)
    kept: dict[str, Any] = {}

    def pause(run: StagedRun) -> None:
        if run.epoch == at:
            kept["state"] = {name: value.clone() for name, value in run.tensors().items()}, run.meta()
            run.pause = True

    with pytest.raises(PausedError, match=f"after epoch {at} of 8"):
        run_stages(plan(), 7, rounds=4, callbacks=[pause])
    again = run_stages(plan(), 7, rounds=4, resume=kept["state"])
    assert all(torch.equal(again.found[name], value) for name, value in whole.found.items())
    assert again.history == whole.history
    other = run_stages(plan(), 8, rounds=4)
    assert not torch.equal(other.found["second/at"], whole.found["second/at"])


def test_a_run_is_stopped_in_its_last_stage_alone() -> None:
    def stop(at: int) -> Any:
        def callback(run: StagedRun) -> None:
            run.stop = run.epoch == at

        return callback

    early = run_stages(plan(), 0, rounds=4, callbacks=[stop(6)])
    assert early.epoch == 6
    assert early.found["second/at"].isfinite().all()
    with pytest.raises(DataError, match="stage 'first', before the last"):
        run_stages(plan(), 0, rounds=4, callbacks=[stop(4)])


def test_the_longest_gradient_is_clipped() -> None:
    class Steep(Bowl):
        def loss(self, share: float, generator: torch.Generator) -> Tensor:
            self.seen = self.at.grad
            return 1e6 * self.at.sum()

    stage = Steep(torch.zeros(2))
    stage.clip_norm = 1.0
    run_stages({"one": lambda _: stage}, 0)
    assert stage.at.grad is not None
    assert float(stage.at.grad.norm()) == pytest.approx(1.0, rel=1e-4)
