"""Requests per second of torchferry and TorchServe side by side, in one run.

    python -m benchmarks.compare_echo

Both serve the same archive (`echo/echo.py`) with batch_size 32, max_batch_delay 5 ms and one
worker, on this machine, at the same time; wrk drives them in turns: A B A B. Exit code 0: the bar
is reached; 1: it is not; 2: nothing could be measured.
"""

import argparse
import contextlib
import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.echo_report import ROOT, Comparison, print_comparison, to_record, write_record
from benchmarks.load import BenchmarkError, Load, LoadReport, drive, wrk_path
from benchmarks.servers import EchoServer, Serving, Torchferry, TorchServe
from benchmarks.torchserve_env import torchserve_python

RESULTS = ROOT / "benchmarks" / "results"
EXIT_REACHED, EXIT_MISSED, EXIT_FAILED = 0, 1, 2


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_echo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--connections", type=_positive, default=64)
    parser.add_argument("--body-bytes", type=_positive, default=1024)
    parser.add_argument("--seconds", type=_positive, default=4, help="of each run")
    parser.add_argument("--warm-up-seconds", type=_positive, default=4, help="per server, once")
    parser.add_argument("--pairs", type=_positive, default=3)
    parser.add_argument("--bar", type=float, default=8000.0, help="requests/s that are enough")
    parser.add_argument("--skip-torchserve", action="store_true")
    parser.add_argument("--skip-torchferry", action="store_true")
    parser.add_argument(
        "--torchserve-logs",
        choices=("as-installed", "warnings"),
        default="as-installed",
        help="as installed, TorchServe writes several log lines per request",
    )
    parser.add_argument("--name", default="echo", help="of the file in benchmarks/results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of that file")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="TorchServe's home")
    options = parser.parse_args(arguments)
    if options.skip_torchserve and options.skip_torchferry:
        parser.error("nothing is left to measure")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The comparison is printed and written; returns the exit code."""
    options = parse(arguments)
    # SIGTERM then unwinds the stack like Ctrl-C does, and the servers end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console()
    try:
        return compare(options, console)
    except BenchmarkError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def compare(options: argparse.Namespace, console: Console) -> int:
    """The comparison is printed and written; returns the exit code.

    Raises:
        BenchmarkError: a server or a tool is missing or failed.
    """
    wrk_path()
    load = Load(connections=options.connections, body_bytes=options.body_bytes)
    serving = Serving(job_queue_size=max(100, options.connections))
    setting = asdict(serving) | asdict(load) | {"seconds": options.seconds, "wrk_threads": 1}
    setting["torchserve_logs"] = options.torchserve_logs
    setting["load_average_before"] = round(os.getloadavg()[0], 2)
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(server) for server in chosen_servers(options, serving, console)
        ]
        runs = measure(servers, load, options, console)
        versions = software_versions(servers)
    comparison = Comparison(runs, options.bar)
    title = f"echo, {load.body_bytes} bytes, {load.connections} connections"
    print_comparison(console, comparison, title)
    path = options.results / f"{options.name}.json"
    write_record(to_record(comparison, setting, versions), path)
    console.print(f"written to {path}", highlight=False)
    verdict = comparison.verdict()
    return EXIT_MISSED if verdict is not None and not verdict.is_reached else EXIT_REACHED


def chosen_servers(
    options: argparse.Namespace, serving: Serving, console: Console
) -> list[EchoServer]:
    """The servers to measure, not yet started."""
    servers: list[EchoServer] = []
    if not options.skip_torchserve:
        with console.status("TorchServe's environment"):
            python = torchserve_python(options.cache)
        is_quiet = options.torchserve_logs == "warnings"
        servers.append(TorchServe(python, serving, is_quiet=is_quiet))
    if not options.skip_torchferry:
        servers.append(Torchferry(serving))
    return servers


def measure(
    servers: Sequence[EchoServer], load: Load, options: argparse.Namespace, console: Console
) -> dict[str, list[LoadReport]]:
    """The runs of each server, by name. Blocks for all of them.

    Each server is warmed up first: TorchServe's JVM reaches its speed after some 20,000 requests.
    """
    runs: dict[str, list[LoadReport]] = {server.name: [] for server in servers}
    for server in servers:
        with console.status(f"warm-up: {server.name}"):
            drive(server.url, load, options.warm_up_seconds)
    for pair in range(options.pairs):
        for server in servers:
            with console.status(f"run {pair + 1} of {options.pairs}: {server.name}"):
                runs[server.name].append(drive(server.url, load, options.seconds))
    return runs


def software_versions(servers: Sequence[EchoServer]) -> dict[str, str]:
    """Versions of what was measured and of what measured it."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    wrk = subprocess.run([wrk_path(), "-v"], capture_output=True, text=True, check=False)
    return {
        **{server.name: server.version for server in servers},
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "granian", "redis")},
        "java": java.stderr.partition("\n")[0],
        "wrk": wrk.stdout.partition(" Copyright")[0],
    }


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


if __name__ == "__main__":
    sys.exit(main())
