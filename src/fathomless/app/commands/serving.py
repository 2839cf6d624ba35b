"""Command ``serve``: predictions of a run over HTTP, in JSON.

``GET /health``
    ``{"status": "ok"}``.
``GET /schema``
    Task, targets, classes, columns and limits; see :func:`describe`.
``POST /predict``
    Predictions of rows. The body is ``{"rows": [{column: value, ...}, ...]}`` or ``{"columns": {column: [value, ...],
    ...}}``, and may have ``"interval": [level, ...]`` and ``"ood": true``. See :func:`answer`.

Errors are ``{"error": message}``. The status is 400 for a body that is not JSON, 413 for one that is too large, 422 for
rows that cannot be predicted, 503 for too many requests, and 500 for an internal error.

The event loop reads and writes. Another thread predicts, one request after another.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import warnings
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fathomless import __version__
from fathomless.app.commands.fitted import set_threads, table_form
from fathomless.app.commands.flags import translate_message
from fathomless.app.commands.printing import note
from fathomless.system.errors import DataError, FathomlessError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

    from fathomless.app.predicting import LoadedRun

__all__ = ["answer", "application", "describe", "serve"]

_BODY = 32 << 20  # maximum bytes of a body
_DISCARDED = 16 * _BODY  # maximum bytes that are read of a larger body
_WAITING = 32  # maximum number of requests that predict or wait, whose bodies are in memory
_UNUSED = 100  # maximum number of columns of a request that the run does not use
_LEVELS = 100  # maximum number of levels of prediction intervals
_SWITCH = 0.0005  # seconds after which the thread that predicts lets the event loop continue
_RECEIPT = 30  # seconds in which a body must arrive
_GRACE = 60  # seconds that a request in progress can take after the signal


class _RefusedError(DataError):
    """Request that is refused with a status of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def serve(given: argparse.Namespace) -> int:
    """Predict rows over HTTP until SIGINT or SIGTERM; requests in progress are then answered."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise DataError(f"serve needs {error.name}, which is not installed: pip install 'fathomless[serve]'") from error
    from fathomless.app import predicting

    run = predicting.load_run(given.folder, given.unseen, given.missing)
    threads = given.threads or (run.manifest.threads if run.manifest else None)
    with (
        _listen(given.host, given.port) as listener,
        ThreadPoolExecutor(1, initializer=set_threads, initargs=(threads,)) as pool,
    ):
        host = f"[{given.host}]" if ":" in given.host else given.host

        @contextlib.asynccontextmanager
        async def announce(_: Any) -> AsyncIterator[None]:  # the server handles signals from here on
            note(f"{given.folder} is served at http://{host}:{listener.getsockname()[1]}; Ctrl-C ends the server")
            yield

        config = uvicorn.Config(
            application(run, pool, given.max_rows, announce),
            log_config=None,  # errors are printed on standard error
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_GRACE,
        )
        server = uvicorn.Server(config)
        logging.getLogger("uvicorn.error").addFilter(lambda _: not server.force_exit)  # requests that are cancelled
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises the signal again after the last answer
            if server.force_exit:  # a second Ctrl-C
                raise
        finally:
            sys.setswitchinterval(before)
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 is a free one."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise DataError(
            f"--host {host} --port {port} cannot be used: {reason}; give an address of this machine and a free port"
        ) from error


def application(run: "LoadedRun", pool: ThreadPoolExecutor, max_rows: int, lifespan: Any = None) -> "Starlette":
    """Return the ASGI application of a run, which predicts in the thread of `pool`.

    `lifespan` is an asynchronous context manager around the life of the server.
    """
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response
    from starlette.routing import Route

    description = describe(run, max_rows)
    active = 0  # requests that predict or wait

    def respond(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return Response(body, status, headers, "application/json")

    async def health(_: Any) -> Response:
        return respond({"status": "ok"})

    async def schema(_: Any) -> Response:
        return respond(description)

    async def predict(request: "Request") -> Response:
        nonlocal active
        if active >= _WAITING:
            raise _RefusedError(503, f"{active} requests are being answered, the maximum; repeat this one later")
        active += 1
        try:
            body = await _read_body(request)
            return respond(await asyncio.get_running_loop().run_in_executor(pool, answer, run, body, max_rows))
        finally:
            active -= 1

    async def refuse(_: Any, error: Any) -> Response:
        status = error.status if isinstance(error, _RefusedError) else 422
        return respond({"error": translate_message(str(error))}, status)

    async def refuse_address(request: "Request", error: Any) -> Response:
        there = "GET /health, GET /schema and POST /predict"
        text = f"{request.method} {request.url.path} was given; {there} are allowed"
        return respond({"error": text}, error.status_code, error.headers)

    async def ignore(_: Any, error: Exception) -> Response:  # the client has gone
        return respond({"error": "the body is not complete"}, 400)

    async def fail(_: Any, error: Exception) -> Response:
        return respond({"error": "internal error; the traceback is in the log of the server"}, 500)

    return _without_redirects(
        routes=[
            Route("/health", health),
            Route("/schema", schema),
            Route("/predict", predict, methods=["POST"]),
        ],
        exception_handlers={
            FathomlessError: refuse,
            HTTPException: refuse_address,
            ClientDisconnect: ignore,
            Exception: fail,
        },
        lifespan=lifespan,
    )


def _without_redirects(**options: Any) -> "Starlette":
    """Build an application in which an address with a slash at its end is another address."""
    from starlette.applications import Starlette

    app = Starlette(**options)
    app.router.redirect_slashes = False
    return app


async def _read_body(request: "Request") -> bytes:
    """Read the body of a request.

    The rest of a body that is too large is discarded, since many clients read the answer only after they have sent
    everything.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(_RECEIPT):
            async for piece in request.stream():
                size += len(piece)
                if size <= _BODY:
                    body += piece
                if size > _DISCARDED:
                    break
    except TimeoutError as error:
        raise _RefusedError(408, f"the body did not arrive within {_RECEIPT} seconds; send it again") from error
    if size > _BODY:
        raise _RefusedError(
            413, f"the body has more than {_BODY:,} bytes, the maximum; divide the rows among several requests"
        )
    return bytes(body)


def describe(run: "LoadedRun", max_rows: int) -> dict[str, Any]:
    """Return the answer to ``GET /schema``."""
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.predictor import Predictor

    target = run.predictor.target if isinstance(run.predictor, Predictor) else None
    schema = run.schema
    return {
        "task": run.task,
        "targets": list(run.targets),
        "classes": list(target.labels) if isinstance(target, ClassLabels) else None,
        "key": run.manifest.key if run.manifest else None,
        "columns": [
            {
                "name": column.name,
                "kind": column.kind,
                "levels": list(column.levels),
                "new_levels": column.kind == "category" and (column.other or schema.unseen == "ignore"),
                "missing_values": column.gaps or column.kind == "empty" or schema.missing == "impute",
            }
            for column in schema.columns
        ],
        "columns_by": "name" if schema.named else "position",
        "limits": {"rows": max_rows, "bytes": _BODY},
        "version": __version__,
    }


def answer(run: "LoadedRun", body: bytes, max_rows: int) -> bytes:
    """Return the answer to ``POST /predict`` as JSON.

    The rows are read as a file of JSON lines. The predictions equal those of ``fathomless predict`` for such a file,
    bit for bit. The answer has the form of the request, "rows" or "columns", and "notes", the notes of that command.
    Numbers that are not finite are null.

    Raises
    ------
    DataError
        If the rows cannot be predicted.
    """
    from fathomless.app import predicting
    from fathomless.app.commands import columns
    from fathomless.tables.writers import to_plain

    request = _parse(body)
    rows = _read_rows(request, max_rows, [column.name for column in run.schema.columns])
    levels = _read_levels(request)
    predicting.check_intervals(run, {"interval": levels})
    notes = list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = columns.concatenate(
            predicting.predict_table(
                run,
                json.dumps(rows).encode(),
                table_form({}, run.manifest),
                levels=levels or [0.9],
                ood=_read_ood(request),
                notes=notes,
            )
        )
    warned = [str(w.message) for w in caught if not issubclass(w.category, DeprecationWarning | FutureWarning)]
    cells = {name: list(map(to_plain, found[name].to_pylist())) for name in found.column_names}
    form = "rows" if "rows" in request else "columns"
    shown = (
        [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)] if form == "rows" else cells
    )
    return json.dumps({form: shown, "notes": [*warned, *notes]}, allow_nan=False).encode()


def _parse(body: bytes) -> dict[str, Any]:
    """Parse the body of a request."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number of JSON; null is a missing value")

    try:
        request = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise _RefusedError(
            400, f'the body is not JSON: {error}; an example is {{"rows": [{{"size": 1.5}}]}}'
        ) from error
    allowed = {"rows", "columns", "interval", "ood"}
    if not isinstance(request, dict) or ("rows" in request) == ("columns" in request) or not set(request) <= allowed:
        given = ", ".join(map(repr, request)) if isinstance(request, dict) else f"a {type(request).__name__}"
        raise DataError(
            f'the body has {given or "no keys"}; "rows" or "columns" is needed, and "interval" and "ood" are allowed'
        )
    return request


def _read_rows(request: Mapping[str, Any], max_rows: int, known: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a request, at least one and at most `max_rows`, with not many more columns than `known`."""
    if "rows" in request:
        rows = request["rows"]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError('"rows" is a list of objects, one for each row: {"rows": [{"size": 1.5}, {"size": 2.5}]}')
    else:
        columns = request["columns"]
        if not isinstance(columns, dict) or not all(isinstance(values, list) for values in columns.values()):
            raise DataError('"columns" is an object with a list for each column: {"columns": {"size": [1.5, 2.5]}}')
        if len(lengths := {len(values) for values in columns.values()}) > 1:
            raise DataError(
                f'the lists of "columns" have between {min(lengths)} and {max(lengths)} values; one length is needed'
            )
        _check_count(max(lengths, default=0), max_rows)
        _check_unused(columns, known)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    _check_count(len(rows), max_rows)
    _check_unused({name for row in rows for name in row}, known)
    return rows


def _check_unused(names: Collection[str], known: Sequence[str]) -> None:
    if len(names) > len(known) + _UNUSED:
        unused = sorted(set(names).difference(known))
        raise DataError(f"{len(unused):,} columns are not used, such as {unused[0]!r}; up to {_UNUSED} are allowed")


def _check_count(count: int, max_rows: int) -> None:
    if not count:
        raise DataError("the request has no rows; give at least one")
    if count > max_rows:
        raise _RefusedError(
            413, f"the request has {count:,} rows; up to {max_rows:,} are allowed: divide them among several requests"
        )


def _read_ood(request: Mapping[str, Any]) -> bool:
    """Return True if the p-values of the rows are requested."""
    value = request.get("ood", False)
    if not isinstance(value, bool):
        raise DataError(f'"ood" is {str(value)[:60]}; true and false are allowed')
    return value


def _read_levels(request: Mapping[str, Any]) -> list[float]:
    """Return the levels of prediction intervals; none if the request has none."""
    levels: Any = request.get("interval", [])
    valid = isinstance(levels, list) and len(levels) <= _LEVELS
    if not valid or not all(isinstance(level, float) and 0.0 < level < 1.0 for level in levels):
        raise DataError(
            f'"interval" is {str(levels)[:60]}; a list of up to {_LEVELS} numbers between 0 and 1 is allowed, such as '
            "[0.5, 0.9]"
        )
    return list(levels)
