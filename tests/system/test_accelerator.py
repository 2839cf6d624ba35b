"""On a graphics processor: every family and mode, and the device itself. ``pytest -m accelerator`` runs these alone."""

import json

import accelerator
import pytest
import torch

CASES = {case.name: case for case in accelerator.cases()}
ITSELF = {**accelerator.ANYWHERE, **accelerator.ON_CARDS}
on_a_card = [
    pytest.mark.accelerator,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics processor that torch can use"),
]


def marked(names: list[str]) -> list[pytest.param]:  # type: ignore[valid-type]
    return [pytest.param(name, marks=on_a_card) for name in names]


@pytest.mark.parametrize("name", marked(list(CASES)))
def test_a_case_holds_on_a_graphics_processor(name: str) -> None:
    line = accelerator.run_case(CASES[name], "cuda", accelerator.tolerance_of("cuda"))
    assert "failed" not in line, line


@pytest.mark.parametrize("name", marked(list(ITSELF)))
def test_a_graphics_processor_is_used_as_documented(name: str) -> None:
    ITSELF[name]("cuda")


def test_the_script_for_a_graphics_processor_runs_on_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    assert accelerator.main(["--device", "cpu", "finite-regression"]) == 0
    case, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert case["steps"] == [*accelerator.EVERY, *accelerator.PLAIN]
    assert end["left_out"] == 0


def test_a_step_that_fails_is_told_and_ends_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: accelerator.CaseCheck) -> None:
        raise RuntimeError("two devices")

    monkeypatch.setattr(accelerator.CaseCheck, "predict", broken)
    line = accelerator.run_case(CASES["finite-classification"], "cpu", 1e-6)
    assert (line["failed"], line["error"], line["steps"]) == ("predict", "RuntimeError: two devices", ["fit"])
