"""Requests per second of torchferry and other servers side by side, in one run.

    python -m benchmarks.compare --workload echo --servers torchserve,mosec

Exit code 0: every bar is reached; 1: one is missed; 2: one could not be judged.
"""

import argparse
import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.comparison import is_reached, to_record
from benchmarks.contest import SERVERS, Contest, Pairs
from benchmarks.load import BenchmarkError, wrk_path
from benchmarks.presentation import markdown, print_record, write_chart
from benchmarks.records import (
    PERFORMANCE,
    RESULTS,
    SHORT_RESULTS,
    write_block,
    write_record,
)
from benchmarks.reports import EXIT_CODES, end_servers_on_sigterm, positive
from benchmarks.workloads import WORKLOADS, Workload

CHARTS = PERFORMANCE.parent / "charts"
# Of tables in a file.
WIDTH = 110
PAIRS, SHORT_PAIRS, SHORT_SECONDS = 5, 2, 2.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads and checks the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workload", type=_names(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument(
        "--servers", type=_names(SERVERS), default=None, help="beside torchferry, with commas"
    )
    parser.add_argument("--pairs", type=positive, default=None)
    parser.add_argument("--seconds", type=positive, default=None, help="of each run")
    parser.add_argument(
        "--torchserve-logs",
        choices=("as-installed", "warnings"),
        default="as-installed",
        help="as installed, TorchServe writes several log lines per request",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="a few seconds, for a first look: the record stays in .bench, the document as it is",
    )
    options = parser.parse_args(arguments)
    options.pairs = options.pairs or (SHORT_PAIRS if options.short else PAIRS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints and writes the comparisons; returns the worst of their exit codes."""
    options = parse(arguments)
    end_servers_on_sigterm()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    codes = []
    for name in options.workload:
        try:
            record = compare(WORKLOADS[name], options, console)
        except BenchmarkError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            codes.append(EXIT_CODES[None])
            continue
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        print_record(console, record)
        path = publish(record, name, is_short=options.short)
        console.print(f"written to {path}", highlight=False)
        codes.append(EXIT_CODES[is_reached(record)])
    return max(codes)


def compare(workload: Workload, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measures one workload and returns its record. Blocks for all runs.

    Raises:
        BenchmarkError: torchferry or a tool is missing or failed.
    """
    if not workload.network:
        wrk_path()
    seconds = options.seconds or (SHORT_SECONDS if options.short else workload.seconds)
    load_average = round(os.getloadavg()[0], 2)
    measured: list[Pairs] = []
    left_out: dict[str, str] = {}
    names = options.servers or workload.servers.split(",")
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(_progress(console))
        task = progress.add_task(workload.title, total=len(names) * 2 * (options.pairs + 1))
        # Before the folder goes, the servers have to be gone.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="model-"))
        progress.update(task, description=f"{workload.title}: model")
        contest = Contest.prepared(workload, Path(folder))
        progress.update(task, description=f"{workload.title}: torchferry")
        ours = stack.enter_context(contest.torchferry())

        def on_run(text: str) -> None:
            progress.update(task, advance=1, description=f"{workload.title}: {text}")
            if not console.is_terminal:
                console.print(text, highlight=False)

        for name in names:
            progress.update(task, description=f"{workload.title}: {name}")
            try:
                is_quiet = options.torchserve_logs == "warnings"
                with contest.rival(name, is_quiet=is_quiet) as rival:
                    pairs = contest.measure(ours, rival, options.pairs, seconds, on_run)
            except BenchmarkError as error:
                left_out[SERVERS[name]] = str(error)
                progress.console.print(f"left out: {name}", highlight=False)
            else:
                measured.append(pairs)
    about = {
        "pairs": options.pairs,
        "seconds": seconds,
        "load_average": load_average,
        "torchserve_logs": options.torchserve_logs,
        "versions": software_versions(),
    }
    return to_record(workload, measured, left_out, about)


def publish(record: dict[str, Any], name: str, *, is_short: bool) -> Path:
    """Writes the record, and its table into docs/performance.md unless short; returns the path."""
    path = (SHORT_RESULTS if is_short else RESULTS) / f"{name}.json"
    write_record(record, path)
    if is_short:
        return path
    chart = CHARTS / f"{name}.png"
    write_chart(record, chart)
    place = chart.relative_to(PERFORMANCE.parent).as_posix()
    write_block(name, markdown(record, name, place))
    return path


def software_versions() -> dict[str, str]:
    """Versions of what every server shares and of what measured it."""
    names = ("torchferry", "torch", "torchvision", "httptools", "redis", "aiohttp")
    versions = {name: importlib.metadata.version(name) for name in names}
    if shutil.which("java"):
        java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
        versions["java"] = java.stderr.partition("\n")[0]
    if wrk := shutil.which("wrk"):
        run = subprocess.run([wrk, "-v"], capture_output=True, text=True, check=False)
        versions["wrk"] = run.stdout.partition(" Copyright")[0]
    return versions


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True)


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: none of {', '.join(known)}, with commas"
            )
        return names

    return read


if __name__ == "__main__":
    sys.exit(main())
