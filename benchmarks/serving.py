"""Latency, throughput and memory of ``fathomless serve`` on the loopback interface.

    python benchmarks/serving.py [--seconds 6]

A table of 442 patients with 10 columns is fitted with a short training, which does not change the times of predictions:
ten networks of unbounded depth. The server is another process with one thread for predictions. Clients are threads of
this process that keep their connections and wait for each answer before the next request. "CPU" is the time of the
processor that the server uses for a request. Beside them, another client requests /health up to twenty times a second.
At the end, 16 requests are sent; as soon as the server has read them, it receives SIGTERM.
"""

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from command_line import PROGRAM, seconds, write_tables

LAST = 16  # requests that are in progress at SIGTERM


def read_memory(process: int, name: str) -> float:
    """Return the memory of a process in MiB: "VmRSS" now, "VmHWM" at its maximum (Linux)."""
    text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(re.findall(rf"^{name}:\s+(\d+) kB", text, re.M)[0]) / 1024


def read_processor_time(process: int) -> float:
    """Return the seconds of the processor that a process has used (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connect(address: str) -> http.client.HTTPConnection:
    """Return an open connection."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.connect()
    return connection


def repeat(address: str, body: bytes | None, duration: float) -> list[float]:
    """Send a request again and again (without a body, to /health, with pauses); return the seconds that each took."""
    connection = connect(address)
    end = time.perf_counter() + duration
    times: list[float] = []
    while (start := time.perf_counter()) < end:
        connection.request("GET", "/health") if body is None else connection.request("POST", "/predict", body)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 200, reply.status
        times.append(time.perf_counter() - start)
        time.sleep(0.05 if body is None else 0.0)
    connection.close()
    return times


def measure(label: str, process: int, address: str, rows: list[Any], clients: int, duration: float) -> None:
    """Print the throughput and the latency of requests with the same rows, and the latency of /health beside them."""
    before = read_processor_time(process)
    body = json.dumps({"rows": rows}).encode()
    with ThreadPoolExecutor(clients + 1) as pool:
        start = time.perf_counter()
        sent = [pool.submit(repeat, address, body, duration) for _ in range(clients)]
        health = pool.submit(repeat, address, None, duration)
        times = np.concatenate([one.result() for one in sent])
        took = time.perf_counter() - start
        beside = np.array(health.result())
    used = read_processor_time(process) - before
    cells = [f"{len(times) * len(rows) / took:10,.0f}", f"{1e3 * used / len(times):9,.1f}"]
    cells += [f"{1e3 * np.quantile(values, p):9,.1f}" for values in (times, beside) for p in (0.5, 0.99)]
    print(f"{label:32}{len(times):9,}", *cells, flush=True)


def stop(process: "subprocess.Popen[str]", address: str, rows: list[Any]) -> None:
    """Send SIGTERM while requests are in progress; print how many are answered."""
    connections = [connect(address) for _ in range(LAST)]
    for connection in connections:
        connection.request("POST", "/predict", json.dumps({"rows": rows}))
    last = connect(address)
    last.request("GET", "/health")
    last.getresponse().read()  # the requests before have been read
    start = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    answered = 0
    for connection in connections:
        reply = connection.getresponse()
        answered += reply.status == 200 and len(json.loads(reply.read())["rows"]) == len(rows)
    code = process.wait(60)
    print(
        f"SIGTERM: {answered} of {LAST} requests in progress were answered; exit code {code} after "
        f"{time.perf_counter() - start:.1f} s"
    )


def main() -> None:
    """Fit the table, start the server and measure it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of each measurement (default: 6)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_tables(home)
        seconds(
            [*PROGRAM, "fit", "patients.csv", "--target", "target", "--quiet", "--epochs", "5", "--out", "run"], home
        )
        head, *lines = (home / "patients.csv").read_text(encoding="utf-8").splitlines()
        names = head.split(",")[:-1]
        table = [dict(zip(names, map(float, line.split(",")), strict=False)) for line in lines]
        rows = [table[i % len(table)] for i in range(10_000)]
        start = time.perf_counter()
        words = [sys.executable, *PROGRAM, "serve", "run", "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(words, cwd=home, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            address = re.findall(r"http://([\d.:]+)", process.stderr.readline())[0]
            print(f"ready after {time.perf_counter() - start:.1f} s, {read_memory(process.pid, 'VmRSS'):.0f} MiB")
            repeat(address, json.dumps({"rows": rows[:1]}).encode(), 1.0)  # warm up
            print(f"{'':32} requests     rows/s    CPU ms    p50 ms    p99 ms   /health: p50, p99 ms")
            measure("1 row, 1 client", process.pid, address, rows[:1], 1, args.seconds)
            measure("1 row, 8 clients", process.pid, address, rows[:1], 8, args.seconds)
            measure("100 rows, 1 client", process.pid, address, rows[:100], 1, args.seconds)
            measure("10,000 rows, 1 client", process.pid, address, rows, 1, args.seconds)
            measure("10,000 rows, 4 clients", process.pid, address, rows, 4, args.seconds)
            print(f"maximum memory: {read_memory(process.pid, 'VmHWM'):.0f} MiB")
            stop(process, address, rows[:1000])


if __name__ == "__main__":
    main()
