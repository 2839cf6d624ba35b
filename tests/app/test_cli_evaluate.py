"""The command line as its users meet it: evaluations, pages, references, and the demo."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import fathomless
from commands import Call, Said
from fathomless.app import runs
from fathomless.app.commands import columns
from fathomless.app.page import report
from fathomless.data.frames import as_numbers
from fathomless.families.registry import references
from fathomless.tables import files as tables
from housing import QUICK, SCORES, N, column, fit, fitted, houses, predicted, refused, standard_input, write

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.usefixtures("houses_csv"),
]

DRAWN = report.render  # with pictures, which take their time


# --------------------------------------------------------------------------------------------- errors: a run

NEEDING = [["predict", "RUN", "houses.csv"], ["evaluate", "RUN", "houses.csv"]]
NEEDING += [["report", "RUN"], ["export", "RUN"], ["cite", "RUN"]]


@pytest.mark.parametrize("words", NEEDING, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "there is no folder nowhere; check the path"),
        ("houses.csv", "houses.csv is a file; give the folder that holds manifest.json"),
        ("empty", "empty holds no manifest.json, so nothing was saved there; check the path"),
        ("foreign", "foreign/manifest.json lacks 'format'"),
        ("unfinished", "the run in unfinished is not finished; repeat its fit command with --resume"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
    ids=["missing", "file", "empty", "foreign", "unfinished", "long"],
)
def test_what_is_no_run_is_refused(call: Call, words: list[str], place: str, message: str) -> None:
    for folder in ("empty", "foreign", "unfinished"):
        Path(folder).mkdir()
    Path("foreign/manifest.json").write_text('{"name": "a web page"}', encoding="utf-8")
    Path("unfinished/unfinished.json").write_text("{}", encoding="utf-8")
    refused(call(*[place if word == "RUN" else word for word in words]), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"price": [None] * N}, "target 'price' has no value in any of the 90 rows"),
        ({"price": ["dear"] * N}, "column 'price', row 1 after the header: 'dear' is not a number"),
        ({"price": [float("inf")] * N}, "infinity"),
        ({"colour": ["mauve"] * N}, "column 'colour' has the category 'mauve'"),
    ],
    ids=["no answers", "text", "infinity", "new category"],
)
def test_what_cannot_be_evaluated_is_refused_and_not_kept(call: Call, changes: dict[str, Any], message: str) -> None:
    fitted(call)
    write("test.csv", houses(**changes))
    refused(call("evaluate", "run", "test.csv", "--unseen", "error"), message)
    assert len(runs.evaluations("run")) == 2


def test_a_class_that_training_did_not_see_cannot_be_evaluated(call: Call) -> None:
    fitted(call, "grade")
    write("test.csv", houses(grade=["middling"] * N))
    refused(call("evaluate", "run", "test.csv"), "target 'grade' has the classes 'middling', which are not in the")


def test_answers_are_needed_to_evaluate(call: Call) -> None:
    fitted(call)
    write("test.csv", houses().drop_columns("price"))
    refused(call("evaluate", "run", "test.csv"), "test.csv lacks the columns 'price'")


@pytest.mark.parametrize("out", [".", "houses.csv/page.html"])
def test_a_page_that_cannot_be_written_is_refused(call: Call, out: str) -> None:
    fitted(call)
    refused(call("report", "run", "--out", out), out)


# ------------------------------------------------------------------------------ evaluations, pages and the rest


@pytest.mark.parametrize("target", ["price", "grade"])
def test_a_run_is_exported_as_one_file(call: Call, target: str) -> None:
    fitted(call, target)
    said = call("export", "run", "--format", "torch", "--out", "houses.pt2", "--level", "0.2")
    assert (said.code, said.out) == (0, "houses.pt2\n")
    assert "bytes; maximum difference from the run on artificial rows" in said.err
    extra = {"metadata.json": ""}
    module = torch.export.load("houses.pt2", extra_files=extra).module()
    meta = json.loads(extra["metadata.json"])
    assert meta["targets"] == [target]
    assert set(meta["scores"]) == {"out-of-fold rows", "training rows"}
    test = write("test.csv", houses(seed=2))
    rows = columns.select_features(tables.read(test).frame, runs.load("run")[0].schema_)
    found = module(torch.from_numpy(as_numbers(runs.load("run")[0].schema_, rows)))
    name, values = ("mean", found["mean"]) if target == "price" else ("probability_low", found["probabilities"][:, 1])
    np.testing.assert_allclose(values.numpy(), column(predicted(call, data=test), name), atol=1e-5)
    refused(call("export", "run", "--format", "onnx", "--out", "houses.pt2"), "a name that ends with .onnx is allowed")


def test_an_export_has_no_notes_on_its_artificial_rows(call: Call) -> None:
    write("k.csv", pa.table({"a": np.linspace(0.0, 1.0, 60), "k": [7.0] * 60, "y": np.linspace(0.0, 2.0, 60)}))
    assert call("fit", "k.csv", "--target", "y", "--out", "run", *QUICK).code == 0
    said = call("export", "run", "--format", "torch", "--out", "k.pt2")
    assert said.code == 0
    assert "constant" not in said.err


def test_an_evaluation_is_printed_and_kept(call: Call) -> None:
    fitted(call)
    prices = np.random.default_rng(0).permutation(houses(seed=1)["price"].to_numpy())  # of other houses
    write("test.csv", houses(seed=1, price=prices))
    said = call("evaluate", "run", "test.csv")
    assert said.code == 0
    assert said.err == "note: saved in run; fathomless report run adds it to the page\n"
    scores, _, findings = said.out.partition("\n\n")
    first, *rows = scores.splitlines()
    assert first.split("  ")[0] == "test.csv, 90"
    assert findings.startswith("problem: No better than a constant prediction on test.csv\n  Log-likelihood ")
    assert "set --weight-prior (now 'auto') to a small number, such as 0.3; lower --width (now 8); or" in findings
    shown = [row.split("  ")[0].replace(" ", "_") for row in rows]
    assert shown == [*(name for name in SCORES if name != "log_likelihood"), "log_likelihood"]
    assert [found.name for found in runs.evaluations("run")] == ["test.csv", "out-of-fold rows", "training rows"]


@pytest.mark.parametrize("backend", ["module://absent.backend", None])
def test_the_backend_of_a_notebook_is_not_needed(call: Call, backend: str | None) -> None:
    """A notebook sets MPLBACKEND for the commands that it starts, whose environment may lack its module."""
    fitted(call)
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    environment |= {} if backend is None else {"MPLBACKEND": backend}
    code = (
        "import os, fathomless.app.cli as cli; before = os.environ.get('MPLBACKEND'); "
        "code = cli.main(['report', 'run']); assert os.environ.get('MPLBACKEND') == before; raise SystemExit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("run/report.html").read_text(encoding="utf-8").count("<svg") > 3


def test_an_evaluation_says_what_these_rows_show_and_nothing_else(call: Call) -> None:
    fitted(call)
    write("test.csv", houses(seed=1, price=np.linspace(40, 90, N)))
    found = json.loads(call("evaluate", "run", "test.csv", "--json").out)["findings"]
    assert [one["title"] for one in found] == [
        "No better than a constant prediction on test.csv",
        "Distribution shift on test.csv",
        "Poor calibration on test.csv",
    ]
    assert all(one.keys() == {"severity", "title", "detail", "remedy"} for one in found)
    said = call("evaluate", "run", "test.csv").out
    assert said.endswith("".join("\n{severity}: {title}\n  {detail}\n  {remedy}\n".format(**one) for one in found))


def test_rows_unlike_the_training_rows_are_a_finding(call: Call) -> None:
    fitted(call)
    title = "Rows unlike the training rows on other.csv"
    write("other.csv", houses(seed=1, rooms=np.arange(N) + 200))
    found = json.loads(call("evaluate", "run", "other.csv", "--json").out)
    assert found["ood_share"] == 1.0
    assert title in [one["title"] for one in found["findings"]]
    write("test.csv", houses(seed=1))
    found = json.loads(call("evaluate", "run", "test.csv", "--json").out)
    assert found["ood_share"] < 0.1
    assert "unlike" not in json.dumps(found["findings"])


def test_an_evaluation_as_json_is_that_of_the_predictions(call: Call) -> None:
    fitted(call)
    test = write("test.csv", houses(seed=1, price=[None, *np.linspace(-1, 2, N - 1)]))
    said = call("evaluate", "run", test, "--json")
    assert said.err == "note: 1 row without a target was left out\n"
    found = json.loads(said.out)
    assert (found["run"], found["data"], found["rows"]) == ("run", "test.csv", N - 1)
    assert list(found["scores"]) == list(found["constant"]) == SCORES
    y, mean = np.linspace(-1, 2, N - 1), column(predicted(call, data=test), "mean")[1:]
    assert found["scores"]["rmse"]["value"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-12)
    assert found["scores"]["mae"]["value"] == pytest.approx(np.mean(np.abs(y - mean)), rel=1e-12)
    assert found["constant"]["rmse"]["value"] == pytest.approx(y.std(), rel=1e-12)
    by_width = found["coverage_by_group"][0]
    assert by_width["variable"] == "interval width"
    covered = sum(group["rows"] * group["coverage"] for group in by_width["groups"]) / (N - 1)
    assert covered == pytest.approx(found["scores"]["coverage_90"]["value"], abs=1e-12)


@pytest.mark.parametrize("target", ["grade", "level", "sold"])
def test_an_evaluation_of_classes_counts_those_that_are_right(call: Call, target: str) -> None:
    fitted(call, target)
    test = write("test.csv", houses(seed=1))
    found = json.loads(call("evaluate", "run", test, "--json").out)
    right = predicted(call, data=test)["class"].to_pylist()
    truth = tables.read(test).frame[target].to_pylist()
    assert found["scores"]["accuracy"]["value"] == pytest.approx(
        np.mean([a == b for a, b in zip(right, truth, strict=True)])
    )
    assert ("auroc" in found["scores"]) == (target != "level")


def test_an_evaluation_again_replaces_the_first(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    for seed in (1, 2):
        write("test.csv", houses(seed=seed))
        assert call("evaluate", "run", "test.csv").code == 0
    standard_input(monkeypatch, Path("houses.csv").read_bytes())
    assert call("evaluate", "run", "-").code == 0
    names = [found.name for found in runs.evaluations("run")]
    assert names == ["standard input", "test.csv", "out-of-fold rows", "training rows"]


def test_the_page_of_a_run_is_drawn_with_its_pictures(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    monkeypatch.setattr(report, "render", DRAWN)
    assert call("report", "run", "--out", "pages/page.html") == Said(0, "pages/page.html\n", "")
    page = Path("pages/page.html").read_text(encoding="utf-8")
    assert "houses.csv" in page
    assert page.count("<svg") > 5


def test_a_fit_and_a_report_write_the_same_page(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "render", lambda page: f"{page.options}\n{page.command}\n{page.data}\n{page.findings}")
    fit(call)
    first = Path("run/report.html").read_bytes()
    assert call("report", "run").code == 0
    assert Path("run/report.html").read_bytes() == first


def test_an_evaluation_on_the_file_of_the_fit_is_a_problem(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    Path("copy.csv").write_bytes(Path("houses.csv").read_bytes())
    for name in ("houses.csv", "copy.csv"):
        said = call("evaluate", "run", name)
        assert said.out.startswith(f"{name} (training file), ")
        assert said.out.index("problem: Scores of training rows") > 0
        values = json.loads(call("evaluate", "run", name, "--json").out)
        assert (values["data"], values["training_file"]) == (name, True)
        assert [finding["title"] for finding in values["findings"]] == ["Scores of training rows"]
    Path("other.csv").write_bytes(Path("houses.csv").read_bytes() + b"\n")
    standard_input(monkeypatch, Path("houses.csv").read_bytes())
    os.mkfifo("pipe")  # can be read once
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(Path("houses.csv").read_bytes()))
    writer.start()
    for name in ("other.csv", "-", "pipe"):
        said = call("evaluate", "run", name)
        assert said.code == 0
        assert "training" not in said.out
    writer.join()
    monkeypatch.setattr(report, "render", lambda page: "\n".join(finding.title for finding in page.findings))
    assert call("report", "run").code == 0
    assert "Scores of training rows" in Path("run/report.html").read_text(encoding="utf-8")
    names = [evaluation.name for evaluation in runs.evaluations("run")]  # the first one is at the top of the page
    assert names[:3] == ["other.csv", "pipe", "standard input"]
    assert names[3:] == ["out-of-fold rows", "copy.csv (training file)", "houses.csv (training file)", "training rows"]


def test_the_page_shows_all_evaluations(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "render", lambda page: "\n".join(one.name for one in page.evaluations))
    fitted(call)
    for name in ("b.csv", "a.csv", "training rows"):
        with open(name, "wb") as file:
            file.write(Path("houses.csv").read_bytes() + b"\n")
        assert call("evaluate", "run", name).code == 0
    assert call("report", "run") == Said(0, "run/report.html\n", "")
    shown = Path("run/report.html").read_text(encoding="utf-8").splitlines()
    assert shown[:4] == ["./training rows", "a.csv", "b.csv", "out-of-fold rows"]


def test_a_page_can_be_opened(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    fitted(call)
    assert call("report", "run", "--open").code == 0
    assert opened == [Path("run/report.html").resolve().as_uri()]


def test_what_to_cite_is_the_software_and_the_method(call: Call) -> None:
    fitted(call)
    plain, every = call("cite", "run"), call("cite")
    assert (plain.code, every.code) == (0, 0)
    assert set(plain.out.splitlines()) < set(every.out.splitlines())  # without a run, all methods
    assert "Dropout as a Bayesian Approximation" in every.out
    assert plain.out.splitlines() == [reference.text() for reference in references("depth")]
    assert f"Version {fathomless.__version__}." in plain.out
    assert "Nazaret and David Blei. Variational Inference for Infinitely Deep Neural Networks" in plain.out
    entries = call("cite", "run", "--bibtex").out
    assert re.findall(r"^@(\w+)\{(\w+),$", entries, re.MULTILINE) == [
        ("misc", "fathomless"),
        ("inproceedings", "nazaret2022variational"),
    ]
    assert entries.count("{") == entries.count("}")


def test_the_version_is_told(call: Call) -> None:
    assert call("--version") == Said(0, f"fathomless {fathomless.__version__}\n", "")


def test_the_demo_runs_through(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathomless.estimators.variational.automatic_epochs", lambda *_: 4)
    monkeypatch.setattr("fathomless.estimators.variational.automatic_members", lambda *_: 2)
    said = call("demo", "--out", "there/demo")
    assert said.code == 0
    assert re.findall(r"^\$ fathomless (\w+)", said.out, re.MULTILINE) == ["fit", "predict", "evaluate", "report"]
    assert {"patients.csv", "new.csv", "run", "predictions.csv"} <= {path.name for path in Path("there/demo").iterdir()}
    assert len(tables.read("there/demo/predictions.csv").frame) == 100
    refused(call("demo", "--out", "there/demo"), "there/demo already exists; give another --out, or remove it")
    refused(call("demo", "--out", "houses.csv"), "houses.csv already exists")
