"""Processor time of one echo: which process spends it, in its own code or in the kernel.

    python -m benchmarks.request_path

torchferry and, unless `--alone`, TorchServe after it, driven by wrk as `benchmarks.compare
--workload echo` does. Exit code 0: measured; 2: it could not be.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.contest import Contest
from benchmarks.load import drive_with_wrk
from benchmarks.processors import by_role
from benchmarks.records import told
from benchmarks.reports import finish, to_record
from benchmarks.servers import Server
from benchmarks.workloads import WORKLOADS

SECONDS, SHORT_SECONDS, WARM_UP_SECONDS = 10.0, 1.0, 5.0
ALL = "all processes"
# Of what has nothing to do with requests: heartbeats.
LEAST_US = 0.5


@dataclass(frozen=True, slots=True)
class Share:
    """Microseconds per request that one kind of process takes."""

    role: str
    own_us: float
    kernel_us: float


@dataclass(frozen=True, slots=True)
class Found:
    """Of one server, with its requests per second."""

    server: str
    requests_per_s: float
    shares: Sequence[Share]


def measure(contest: Contest, server: Server, seconds: float, *, is_split: bool) -> Found:
    """Measures what this server, up and with its model, takes for each request. Blocks."""
    load = contest.load(server)
    drive_with_wrk(load, min(seconds, WARM_UP_SECONDS))
    roles = by_role(server.pid)
    pids = roles if is_split else {ALL: [pid for found in roles.values() for pid in found]}
    before = _times_s(pids)
    report = drive_with_wrk(load, seconds)
    after = _times_s(pids)
    count = report.requests_per_s * max(1, round(seconds))
    shares = [
        Share(
            role, *(1e6 * (now - then) / count for now, then in zip(after[role], was, strict=True))
        )
        for role, was in before.items()
    ]
    shares.sort(key=lambda share: -share.own_us - share.kernel_us)
    return Found(server.name, report.requests_per_s, shares)


def _times_s(pids: Mapping[str, Sequence[int]]) -> dict[str, tuple[float, float]]:
    found = {}
    for role, members in pids.items():
        times = [psutil.Process(pid).cpu_times() for pid in members]
        found[role] = (sum(one.user for one in times), sum(one.system for one in times))
    return found


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the shares as a table."""
    lines = [
        f"`python -m benchmarks.request_path` at {told(record)}; load average before:"
        f" {record['load_average']}:",
        "",
        "| microseconds per request | own code | kernel | together |",
        "|---|---|---|---|",
    ]
    for found in record["servers"]:
        shares = [one for one in found["shares"] if one["own_us"] + one["kernel_us"] >= LEAST_US]
        own_us = sum(share["own_us"] for share in shares)
        kernel_us = sum(share["kernel_us"] for share in shares)
        head = f"**{found['server']}**, {found['requests_per_s']:,.0f} requests/s"
        lines.append(_row(head, own_us, kernel_us))
        if len(shares) > 1:
            lines += [_row(one["role"], one["own_us"], one["kernel_us"]) for one in shares]
    return "\n".join(lines)


def _row(name: str, own_us: float, kernel_us: float) -> str:
    return f"| {name} | {own_us:.1f} | {kernel_us:.1f} | {own_us + kernel_us:.1f} |"


def run(seconds: float, *, is_alone: bool) -> dict[str, Any]:
    """Measures both servers and returns the record.

    Raises:
        BenchmarkError: a server or a tool is missing or failed.
    """
    load_average = round(psutil.getloadavg()[0], 2)
    servers = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="path-")))
        contest = Contest.prepared(WORKLOADS["echo"], folder)
        with contest.torchferry() as ours:
            servers.append(measure(contest, ours, seconds, is_split=True))
        if not is_alone:
            rival = contest.rival("torchserve", is_quiet=False)
            with rival as theirs:
                assert isinstance(theirs, Server)
                servers.append(measure(contest, theirs, seconds, is_split=False))
    about = {
        "load_average": load_average,
        "seconds": seconds,
        "setting": WORKLOADS["echo"].setting(),
        "servers": [asdict(found) for found in servers],
    }
    return to_record("processor time of one echo, by process", about, [])


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints and writes the shares; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.request_path", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--alone", action="store_true", help="without TorchServe")
    parser.add_argument(
        "--short", action="store_true", help="a second; the document stays as it is"
    )
    options = parser.parse_args(arguments)
    seconds = SHORT_SECONDS if options.short else SECONDS
    return finish(
        "request-path",
        lambda: run(seconds, is_alone=options.alone),
        markdown,
        is_short=options.short,
    )


if __name__ == "__main__":
    sys.exit(main())
