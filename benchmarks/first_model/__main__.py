"""From nothing to a served model: torchferry beside LitServe, BentoML and mosec, in one run.

    python -m benchmarks.first_model

Each turn starts each server, waits for its first answer, drives it and stops it; the order rotates.
"""

import argparse
import contextlib
import importlib.metadata
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from benchmarks.first_model.contenders import CONTENDERS, Contender
from benchmarks.measuring.load import BenchmarkError, Load, LoadReport, drive_with_wrk, wrk_path
from benchmarks.measuring.records import OURS, ROOT, told, write_block
from benchmarks.measuring.reports import at_least, at_most, finish, positive, to_record
from benchmarks.servers.child import Child
from benchmarks.servers.server import free_ports, inherited_environment, local

NAME = "first_model"
README = ROOT / "README.md"
CONNECTIONS, OUTPUTS = 64, 2
TURNS, SECONDS, WARM_UP_S = 5, 5, 2
START_TIMEOUT_S, POLL_S = 120.0, 0.01
MOST_SECONDS, LEAST_RATIO = 3.5, 5.0
JSON = "application/json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_model")
    parser.add_argument("--turns", type=positive, default=TURNS)
    parser.add_argument("--seconds", type=positive, default=SECONDS, help="of each load")
    parser.add_argument("--short", action="store_true", help="the documents stay as they are")
    options = parser.parse_args()
    if options.short:
        options.turns = options.seconds = 1
    return finish(
        NAME,
        lambda: measure(options.turns, options.seconds),
        lambda record: published(record, is_short=options.short),
        is_short=options.short,
    )


def measure(turns: int, seconds: int) -> dict[str, Any]:
    """Measures all contenders in turns; returns the record.

    Raises:
        BenchmarkError: one cannot be installed, does not start, or answers wrongly.
    """
    wrk_path()
    for contender in CONTENDERS:
        contender.bin()
    starts_s: dict[str, list[float]] = {one.name: [] for one in CONTENDERS}
    loads: dict[str, list[LoadReport]] = {one.name: [] for one in CONTENDERS}
    for turn in range(turns):
        first = turn % len(CONTENDERS)
        for contender in CONTENDERS[first:] + CONTENDERS[:first]:
            start_s, load = one_turn(contender, seconds)
            starts_s[contender.name].append(round(start_s, 2))
            loads[contender.name].append(load)
            print(f"{contender.name}: {start_s:.2f} s, {load.requests_per_s:,.0f} requests/s")
    servers = {
        one.name: {
            "version": one.version or importlib.metadata.version(OURS),
            "steps": list(one.steps),
            "lines": one.lines(),
            "page": one.page,
            "reload": one.reload,
            "first_answer_s": statistics.median(starts_s[one.name]),
            "requests_per_s": statistics.median(run.requests_per_s for run in loads[one.name]),
            "starts_s": starts_s[one.name],
            "runs": [asdict(run) for run in loads[one.name]],
        }
        for one in CONTENDERS
    }
    about = {"connections": CONNECTIONS, "turns": turns, "seconds": seconds, "servers": servers}
    return to_record("a first model", about, verdicts(servers))


def one_turn(contender: Contender, seconds: int) -> tuple[float, LoadReport]:
    """Starts the server, drives it and stops it; returns the seconds to its first answer, too."""
    with tempfile.TemporaryDirectory(prefix="first-", ignore_cleanup_errors=True) as name:
        [port] = free_ports(1)
        command = contender.install_program(Path(name), port)
        child = Child(command, inherited_environment(), Path(name))
        started_s = time.perf_counter()
        child.start()
        try:
            url = local(port) + contender.path
            answer = first_answer(child, url, contender)
            start_s = time.perf_counter() - started_s
            check(contender, answer)
            body = contender.body.encode()
            load = Load(url, body, JSON, CONNECTIONS, least_answer_bytes=len("[0,0]"))
            drive_with_wrk(load, WARM_UP_S)
            return start_s, drive_with_wrk(load, seconds)
        finally:
            child.stop(whole_group=False)


def first_answer(child: Child, url: str, contender: Contender) -> Any:
    """Asks until the server answers with 200; returns what it said."""
    give_up_at = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(trust_env=False, timeout=START_TIMEOUT_S) as client:
        while child.is_running and time.monotonic() < give_up_at:
            with contextlib.suppress(httpx.TransportError):
                reply = client.post(url, content=contender.body, headers={"content-type": JSON})
                if reply.status_code == httpx.codes.OK:
                    return reply.json()
            time.sleep(POLL_S)
    raise BenchmarkError(f"{contender.name} gave no answer:\n{child.log_tail()}")


def check(contender: Contender, answer: Any) -> None:
    """Looks at the answer: the two numbers, in a list for BentoML, which took a list of rows."""
    numbers = answer[0] if contender.name == "BentoML" else answer
    if len(numbers) != OUTPUTS:
        raise BenchmarkError(f"{contender.name} answered {json.dumps(answer)}")


def verdicts(servers: Mapping[str, Any]) -> list[Any]:
    """Judges whether ours is the shortest way, starts in time, and is ahead of all but mosec."""
    ours = servers[OURS]
    others = [server for name, server in servers.items() if name != OURS]
    steps = min(len(one["steps"]) for one in others)
    lines = min(one["lines"] for one in others)
    found = [
        at_most(len(ours["steps"]), steps - 1, "steps: {}", "{:d}"),
        at_most(ours["lines"], lines - 1, "lines of Python: {}", "{:d}"),
        at_most(ours["first_answer_s"], MOST_SECONDS, "first answer after {}", "{:.1f} s"),
    ]
    for name in ("LitServe", "BentoML"):
        ratio = ours["requests_per_s"] / servers[name]["requests_per_s"]
        found.append(at_least(ratio, LEAST_RATIO, f"{{}} {name}'s requests/s", "{:.1f} x"))
    errors = sum(run["errors"] for run in ours["runs"])
    return [*found, at_most(errors, 0, "errors: {}", "{:d}")]


def published(record: Mapping[str, Any], *, is_short: bool) -> str:
    """Returns the table; also writes it into README, unless short."""
    if not is_short:
        write_block(NAME, table(record), README)
    return (
        f"`python -m benchmarks.first_model` at {told(record)}; {record['turns']} turns of "
        f"{record['seconds']} s each.\n\n{table(record)}"
    )


def table(record: Mapping[str, Any]) -> str:
    """Returns the comparison in Markdown."""
    lines = [
        "| | steps | lines of Python | seconds to the first answer | requests/s | page | reload |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for name, one in record["servers"].items():
        title = f"**{name}**" if name == OURS else f"{name} {one['version']}"
        lines.append(
            f"| {title} | {len(one['steps'])} | {one['lines']} | {one['first_answer_s']:.1f} | "
            f"{one['requests_per_s']:,.0f} | {one['page']} | {one['reload']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
