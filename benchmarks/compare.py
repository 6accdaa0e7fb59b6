"""Requests per second of torchferry and other servers side by side, in one run.

    python -m benchmarks.compare --workload echo,label-110k --servers torchserve

Exit code 0: every bar is reached; 1: one is missed; 2: one could not be judged.
"""

import argparse
import contextlib
import importlib.metadata
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.comparison.contest import SERVERS, Contest
from benchmarks.comparison.findings import to_record
from benchmarks.comparison.presentation import costs, markdown, print_record
from benchmarks.comparison.workloads import REQUEST_PATH, WORKLOADS, Network
from benchmarks.measuring.load import BenchmarkError, wrk_path
from benchmarks.measuring.records import RESULTS, SHORT_RESULTS, write_block, write_record
from benchmarks.measuring.reports import EXIT_CODES, end_servers_on_sigterm, is_reached, positive

# Of tables in a file.
WIDTH = 120
PAIRS, SHORT_PAIRS, SHORT_SECONDS = 5, 2, 1
COSTS = "request-path"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads and checks the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workload", type=_names(WORKLOADS), default=list(REQUEST_PATH))
    parser.add_argument(
        "--servers", type=_names(SERVERS), default=None, help="beside torchferry, with commas"
    )
    parser.add_argument(
        "--before", type=Path, default=None, help="another working tree, measured as well"
    )
    parser.add_argument("--pairs", type=positive, default=None, help="turns")
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
    codes = [EXIT_CODES[True]]
    try:
        for network in sorted({WORKLOADS[name].network for name in options.workload}):
            names = [name for name in options.workload if WORKLOADS[name].network == network]
            for name, record in compare(network, names, options, console):
                print_record(console, record)
                path = publish(record, name, is_short=options.short)
                console.print(f"written to {path}", highlight=False)
                codes.append(EXIT_CODES[is_reached(record)])
    except BenchmarkError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        codes.append(EXIT_CODES[None])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if not options.short:
        write_costs()
    return max(codes)


def compare(
    network: Network, names: Sequence[str], options: argparse.Namespace, console: Console
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measures these workloads on the same servers; yields each one's record as it is done.

    Raises:
        BenchmarkError: torchferry or a tool is missing or failed.
    """
    if not network:
        wrk_path()
    asked = {name: options.servers or WORKLOADS[name].servers for name in names}
    everyone = list(dict.fromkeys(name for some in asked.values() for name in some))
    about = {
        "pairs": options.pairs,
        "torchserve_logs": options.torchserve_logs,
        "versions": software_versions(),
    }
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(_progress(console))
        task = progress.add_task("servers", total=None)
        # Before the folder goes, the servers have to be gone.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="model-")))
        contest = Contest.prepared(network, folder)
        is_quiet = options.torchserve_logs == "warnings"
        lineup = contest.start(stack, everyone, options.before, is_quiet=is_quiet)
        runs_per_server = options.pairs + 1
        counts = [len(lineup.among(some)) for some in asked.values()]
        progress.update(task, total=runs_per_server * sum(counts))

        def on_run(text: str) -> None:
            progress.update(task, advance=1, description=text)
            progress.console.print(text, markup=False, highlight=False)

        for name in names:
            workload = WORKLOADS[name]
            seconds = options.seconds or (SHORT_SECONDS if options.short else workload.seconds)
            servers = lineup.among(asked[name])
            is_first = name == names[0] and not options.short
            measured = contest.measure(
                workload, servers, options.pairs, seconds, on_run, is_first=is_first
            )
            left_out = {
                SERVERS[one]: why for one, why in lineup.left_out.items() if one in asked[name]
            }
            yield name, to_record(workload, measured, left_out, {**about, "seconds": seconds})


def publish(record: Mapping[str, Any], name: str, *, is_short: bool) -> Path:
    """Writes the record, and its table into the journal unless short; returns the path."""
    path = (SHORT_RESULTS if is_short else RESULTS) / f"{name}.json"
    write_record(record, path)
    if not is_short:
        write_block(name, markdown(record, name))
    return path


def write_costs() -> None:
    """Writes into the journal what the records say of processor time."""
    paths = [RESULTS / f"{name}.json" for name in REQUEST_PATH]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    write_block(COSTS, costs(records))


def software_versions() -> dict[str, str]:
    """Returns the versions of what every server shares and of what measured it."""
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
        TimeRemainingColumn(),
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
