"""Predictions over HTTP: the numbers of the command ``predict``, limits, refusals and signals."""

import asyncio
import datetime
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from commands import Call
from fathomless.app import predicting
from fathomless.app.commands import serving
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.system.errors import DataError
from housing import fit, fitted, houses, refused, write

pytest.importorskip("uvicorn")  # of the extra serve, as starlette
testclient = pytest.importorskip("starlette.testclient")

pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.usefixtures("houses_csv"),
]

FEATURES = ("size", "rooms", "colour", "new", "built")
SLOW = [level / 31 for level in range(1, 31)]  # many intervals, which take about a quarter of a second
MAX = 100


def read_rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


def new_rows(call: Call, *words: str, table: pa.Table | None = None) -> tuple[list[Any], list[Any]]:
    """Return the rows of a file, and their predictions by the command ``predict``."""
    write("new.jsonl", houses(seed=1) if table is None else table)
    said = call("predict", "run", "new.jsonl", "--out", "predictions.jsonl", *words)
    assert said.code == 0, said.err
    return read_rows("new.jsonl"), read_rows("predictions.jsonl")


@contextmanager
def in_process(unseen: str | None = None, missing: str | None = None, run: str = "run") -> Iterator[Any]:
    with ThreadPoolExecutor(1) as pool:
        app = serving.application(predicting.load_run(run, unseen, missing), pool, MAX)
        yield testclient.TestClient(app, raise_server_exceptions=False)


@contextmanager
def served(*program: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Serve the folder ``run`` at a free port in another process; yield the process and its address."""
    words = [sys.executable, *(program or ("-m", "fathomless")), "serve", "run", "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.fullmatch(r"note: run is served at http://(127\.0\.0\.1:\d+); Ctrl-C ends the server\n", line)
            assert found, line + process.stderr.read()
            yield process, found[1]
        finally:
            process.kill()


def post(address: str, body: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}/predict", body, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def send(address: str, request: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("POST", "/predict", json.dumps(request))
    return connection


# ---------------------------------------------------------------------------------------------- another process


def test_a_server_gives_the_numbers_of_predict_and_answers_what_it_has_read_before_it_ends(call: Call) -> None:
    fitted(call)
    rows, expected = new_rows(call)
    run = predicting.load_run("run", None, None)
    code = (
        "import sys; from fathomless.app.cli import main; code = main(sys.argv[1:]); "
        "slow = {'sklearn', 'scipy', 'pandas', 'joblib'} & set(sys.modules); sys.exit(f'{code} {sorted(slow)}')"
    )
    with served("-c", code) as (process, address):
        status, answer = post(address, json.dumps({"rows": rows}).encode())
        assert (status, answer["rows"]) == (200, expected)
        assert answer["notes"] == ["unused columns: price, rent, grade, level, sold"]
        status, answer = post(address, b" " * (33 << 20))
        assert status == 413
        assert "the body has more than 33,554,432 bytes" in answer["error"]

        bodies = [json.dumps({"rows": [row]}).encode() for row in rows[:12]]
        with ThreadPoolExecutor(6) as clients:
            answers = list(clients.map(lambda body: post(address, body), bodies))
        assert answers == [(200, json.loads(serving.answer(run, body, MAX))) for body in bodies]

        gone = send(address, {"rows": rows[:1], "interval": SLOW})
        gone.close()  # a client that does not wait
        waiting = [send(address, {"rows": [row], "interval": SLOW}) for row in rows[:2]]
        with urllib.request.urlopen(f"http://{address}/health", timeout=60) as reply:  # while the others are predicted
            assert json.loads(reply.read()) == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        for connection, known in zip(waiting, expected, strict=False):
            reply = connection.getresponse()
            (found,) = json.loads(reply.read())["rows"]
            assert reply.status == 200
            assert found["mean"] == pytest.approx(known["mean"])
            assert f"lower_{100 * SLOW[0]:.12g}" in found
            connection.close()
        assert process.wait(30) == 1  # of sys.exit with a text
        assert process.stderr is not None
        assert process.stderr.read() == "0 []\n"


def test_a_body_that_does_not_arrive_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        async def stream(self) -> Any:
            yield b"{"
            await asyncio.sleep(60)

    monkeypatch.setattr(serving, "_RECEIPT", 0.01)
    with pytest.raises(DataError, match=r"the body did not arrive within 0\.01 seconds; send it again"):
        asyncio.run(serving._read_body(Slow()))  # type: ignore[arg-type]


def test_ctrl_c_ends_a_server_that_has_no_requests(call: Call) -> None:
    fitted(call)
    with served() as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


# ------------------------------------------------------------------------------------------------- predictions


def test_columns_intervals_and_the_schema(call: Call) -> None:
    fitted(call)
    rows, expected = new_rows(call, "--interval", "0.5", "--interval", "0.9", "--ood")
    lists = {name: [row[name] for row in rows] for name in ("id", *FEATURES)}
    with in_process() as client:
        found = client.post("/predict", json={"columns": lists, "interval": [0.5, 0.9], "ood": True}).json()
        (said,) = found.pop("notes")
        assert said.endswith(f" of {len(rows)} rows have a p-value up to 0.05 (ood_p); at most about 5 % are expected")
        assert found == {"columns": {name: [row[name] for row in expected] for name in expected[0]}}
        assert "ood_p" in expected[0]
        schema = client.get("/schema").json()
    columns = schema.pop("columns")
    assert [(column["name"], column["kind"]) for column in columns] == list(
        zip(FEATURES, ("numeric", "numeric", "category", "boolean", "date"), strict=True)
    )
    assert columns[2]["levels"] == ["blue", "green", "red"]
    assert [column["new_levels"] for column in columns] == [False, False, True, False, False]
    assert all(column["missing_values"] for column in columns)
    del schema["version"]
    assert schema == {
        "task": "regression",
        "targets": ["price"],
        "classes": None,
        "key": "id",
        "columns_by": "name",
        "limits": {"rows": MAX, "bytes": 32 << 20},
    }


@pytest.mark.parametrize("target", ["grade", "sold"])
def test_classes_keep_their_type(call: Call, target: str) -> None:
    fitted(call, target)
    rows, expected = new_rows(call)
    with in_process() as client:
        assert client.post("/predict", json={"rows": rows}).json()["rows"] == expected
        schema = client.get("/schema").json()
        assert schema["task"] == "classification"
        assert schema["classes"] == {"grade": ["high", "low"], "sold": [False, True]}[target]
        reply = client.post("/predict", json={"rows": rows, "interval": [0.5]})
        assert reply.status_code == 422
        assert reply.json()["error"] == "interval was given, which is for numeric targets; the target is a class"


def test_several_targets_are_predicted_together(call: Call) -> None:
    fit(call, "price", "--target", "rent")
    rows, expected = new_rows(call)
    with in_process() as client:
        assert client.post("/predict", json={"rows": rows}).json()["rows"] == expected
        assert client.get("/schema").json()["targets"] == ["price", "rent"]
    assert "rent_mean" in expected[0]


def test_densities_score_rows(call: Call) -> None:
    write("numbers.csv", houses().select(["size", "price", "rent"]))
    short = ["--sweeps", "20", "--states", "5", "--chains", "1", "--density-draws", "128"]
    short += ["--engine", "numpy"]  # no compilation
    said = call("fit", "numbers.csv", "--task", "density", "--structure", "graph", "--out", "run", *short)
    assert said.code == 0, said.err
    rows, expected = new_rows(call, table=houses(rows=20, seed=1).select(["size", "price", "rent"]))
    with in_process() as client:
        assert client.post("/predict", json={"rows": rows}).json()["rows"] == expected
        schema = client.get("/schema").json()
        assert (schema["task"], schema["targets"]) == ("density", [])
        reply = client.post("/predict", json={"rows": rows, "interval": [0.5]})
        assert reply.json() == {"error": "interval was given, and a density has no target; omit it"}
        reply = client.post("/predict", json={"rows": rows, "ood": True})
        p = [row["ood_p"] for row in reply.json()["rows"]]
        assert len(p) == 20
        assert all(0.0 < value <= 1.0 for value in p)


def test_an_estimator_of_an_array_takes_columns_by_position() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    python = UnboundedDepthRegressor(epochs=2, width=4, cv=2, random_state=0).fit(X, X[:, 0])
    python.save("saved")
    with in_process(run="saved") as client:
        found = client.post("/predict", json={"columns": {"any": X[:, 0].tolist(), "name": X[:, 1].tolist()}}).json()
        assert found["columns"]["mean"] == python.predict(X).tolist()
        assert client.get("/schema").json()["columns_by"] == "position"
        reply = client.post("/predict", json={"rows": [{"any": 1.0}]})
        assert "the table has 1 columns; the model was trained on an array of 2 columns" in reply.json()["error"]


# --------------------------------------------------------------------------------------------------- refusals

ROW = {"size": 0.5, "rooms": 3, "colour": "red", "new": True, "built": "2001-02-03"}
REFUSED: dict[str, tuple[Any, int, str]] = {
    "no body": (b"", 400, "the body is not JSON: Expecting value"),
    "text": (b"size,rooms\n1,2\n", 400, "the body is not JSON"),
    "deep": (b"[" * 100_000, 400, "the body is not JSON: maximum recursion depth"),
    "NaN": (b'{"rows": [{"size": NaN}]}', 400, "NaN is no number of JSON; null is a missing value"),
    "a list": ([ROW], 422, 'the body has a list; "rows" or "columns" is needed'),
    "no keys": ({}, 422, 'the body has no keys; "rows" or "columns" is needed'),
    "both": ({"rows": [ROW], "columns": {}}, 422, "the body has 'rows', 'columns'; \"rows\" or \"columns\" is needed"),
    "other key": ({"rows": [ROW], "level": [0.5]}, 422, "the body has 'rows', 'level'"),
    "no rows": ({"rows": []}, 422, "the request has no rows; give at least one"),
    "no columns": ({"columns": {}}, 422, "the request has no rows; give at least one"),
    "empty row": ({"rows": [{}]}, 422, "there are no columns; at least one is needed"),
    "no objects": ({"rows": [1, 2]}, 422, '"rows" is a list of objects, one for each row'),
    "no lists": ({"columns": {"size": 1}}, 422, '"columns" is an object with a list for each column'),
    "lengths": ({"columns": {"size": [1, 2], "rooms": [1]}}, 422, "between 1 and 2 values; one length is needed"),
    "rows": ({"rows": [ROW] * (MAX + 1)}, 413, "the request has 101 rows; up to 100 are allowed"),
    "many columns": ({"rows": [{**ROW, **{f"c{i}": 1 for i in range(101)}}]}, 422, "101 columns are not used"),
    "absent": ({"rows": [{"size": 1, "new": True}]}, 422, "lacks the columns 'rooms', 'colour', 'built'"),
    "text for number": ({"rows": [ROW, {**ROW, "size": "big"}]}, 422, "'size', row 2 after the header: 'big' is not a"),
    "no date": ({"rows": [{**ROW, "built": "soon"}]}, 422, "column 'built', row 1 after the header: 'soon' is not an"),
    "list": ({"rows": [{**ROW, "size": [1]}]}, 422, "object 1: 'size' is a list or an object"),
    "infinity": (json.dumps({"rows": [{**ROW, "size": 7.5}]}).replace("7.5", "1e999").encode(), 422, "infinity"),
    "surrogate": ({"rows": [{**ROW, "\ud800": 1}]}, 422, "contains a lone surrogate"),
    "levels": ({"rows": [ROW], "interval": [0.5, 1]}, 422, '"interval" is [0.5, 1]; a list of up to 100 numbers'),
    "p-values": ({"rows": [ROW], "ood": 1}, 422, '"ood" is 1; true and false are allowed'),
    "one level": ({"rows": [ROW], "interval": 0.5}, 422, '"interval" is 0.5; a list of up to 100 numbers'),
}


def test_what_cannot_be_predicted_is_refused_with_a_message(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    with in_process() as client:
        for what, (request, status, message) in REFUSED.items():
            body = request if isinstance(request, bytes) else json.dumps(request).encode()
            reply = client.post("/predict", content=body)
            assert (reply.status_code, list(reply.json())) == (status, ["error"]), what
            assert message in reply.json()["error"], what
        for method, path, status in (
            ("GET", "/predict", 405),
            ("POST", "/health", 405),
            ("GET", "/docs", 404),
            ("POST", "/predict/", 404),
        ):
            reply = client.request(method, path)
            assert reply.status_code == status
            assert reply.json()["error"].startswith(f"{method} {path} was given; GET /health, GET /schema and POST")
        with monkeypatch.context() as patch:
            patch.setattr(serving, "_BODY", 100)
            assert client.post("/predict", json={"rows": [ROW] * 2}).status_code == 413
        with monkeypatch.context() as patch:
            patch.setattr(serving, "_WAITING", 0)
            assert client.post("/predict", json={"rows": [ROW]}).status_code == 503
        assert client.post("/predict", json={"rows": [ROW]}).status_code == 200


def test_missing_values_and_new_levels_follow_the_options(call: Call) -> None:
    fitted(call)
    gaps = {**ROW, "size": None, "unknown": 1}
    del gaps["rooms"]
    with in_process() as client:
        reply = client.post("/predict", json={"rows": [ROW, gaps]})
        assert reply.status_code == 200
        unused, imputed = reply.json()["notes"]
        assert unused == "unused columns: unknown"
        assert "'size' in row 2; 'rooms' in row 2. Numbers were replaced by the mean" in imputed
        (new,) = client.post("/predict", json={"rows": [{**ROW, "colour": "mauve"}]}).json()["notes"]
        assert "1 of 1 rows has a category that the training table does not have: 'colour' is 'mauve' in row 1" in new
    with in_process(unseen="error") as client:
        reply = client.post("/predict", json={"rows": [{**ROW, "colour": "mauve"}]})
        assert (reply.status_code, "Correct it, or give --unseen ignore" in reply.json()["error"]) == (422, True)
        assert not any(column["new_levels"] for column in client.get("/schema").json()["columns"])
    with in_process(missing="error") as client:
        reply = client.post("/predict", json={"rows": [ROW, gaps]})
        assert reply.status_code == 422
        assert "column 'size' has missing values (NaN) in 1 of 2 rows" in reply.json()["error"]
        columns = client.get("/schema").json()["columns"]
        assert [column["new_levels"] for column in columns] == [False, False, True, False, False]
        assert not any(column["missing_values"] for column in columns)


def test_internal_errors_are_not_shown_and_numbers_that_are_not_finite_are_null(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted(call)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("internals")

    with in_process() as client:
        monkeypatch.setattr(predicting, "predict_table", fail)
        reply = client.post("/predict", json={"rows": [ROW]})
        assert reply.status_code == 500
        assert reply.json() == {"error": "internal error; the traceback is in the log of the server"}
        days = [None, None, datetime.date(2024, 2, 29)]
        table = pa.table({"mean": [float("nan"), float("inf"), 0.5], "day": days})
        monkeypatch.setattr(predicting, "predict_table", lambda *_, **__: iter([table]))
        found = client.post("/predict", json={"columns": {"size": [1, 2, 3]}}).json()["columns"]
        assert found == {"mean": [None, None, 0.5], "day": [None, None, "2024-02-29"]}


def test_servers_that_cannot_start_say_why(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        said = call("serve", "run", "--port", str(port))
        refused(said, f"--host 127.0.0.1 --port {port} cannot be used: Address already in use; give an address of this")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused(call("serve", "run"), "serve needs uvicorn, which is not installed: pip install 'fathomless[serve]'")
