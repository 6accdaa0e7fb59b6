"""From nothing to a served model: torchferry beside LitServe, BentoML and mosec, in one run.

    python -m benchmarks.first_model

Each turn starts each server, waits for its first answer, drives it and stops it; the order rotates.
"""

import argparse
import contextlib
import importlib.metadata
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.measuring import records
from benchmarks.measuring.load import Load, LoadReport, drive_with_wrk, wrk_path
from benchmarks.measuring.records import OURS, at_least, at_most
from benchmarks.servers import child
from benchmarks.servers.installed import environment_of

NAME = "first_model"
README, PROGRAMS = records.ROOT / "README.md", Path(__file__).with_name("programs")
PORT_IN_PROGRAM = "port=8000"
ROW, OUTPUTS = "[1, 2, 3, 4]", 2
CONNECTIONS, WARM_UP_S = 64, 2
START_TIMEOUT_S, POLL_S = 120.0, 0.01
MOST_SECONDS, LEAST_RATIO = 3.5, 5.0
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Contender:
    """A server, its program, and the steps from an empty machine with Python to an answer.

    A step is a command or a file that the user writes. The request is one, too, but where the
    server prints it, ready to be pasted.
    """

    name: str
    version: str
    program: str
    # `bin` is the folder of its environment's programs, `port` where it is to listen.
    command: str
    path: str
    body: str
    steps: Sequence[str]
    page: str = "Swagger"
    reload: str = "restart"

    def lines(self) -> int:
        """Counts the program's lines that are neither blank nor only a comment."""
        text = (PROGRAMS / self.program).read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        return sum(bool(line) and not line.startswith("#") for line in lines)

    def bin(self) -> Path:
        """Returns the folder with the server's command, after installing it where it is missing."""
        if self.name == OURS:
            return Path(child.ferry_command()).parent
        return environment_of(f"{self.name.lower()}=={self.version}").parent


CONTENDERS = (
    Contender(
        *(OURS, "", "model.py", "{bin}/ferry serve model.py --port {port}"),
        path="/predictions/model",
        body=ROW,
        steps=("make install", "model.py", "ferry serve model.py"),
        page="try it, live batches, Swagger",
        reload="automatic, no request lost",
    ),
    Contender(
        *("LitServe", "0.2.19", "litserve_server.py", "{bin}/python litserve_server.py"),
        path="/predict",
        body=f'{{"input": {ROW}}}',
        steps=("pip install litserve torch", "server.py", "python server.py", "the request"),
    ),
    Contender(
        *("BentoML", "1.4.40", "bentoml_service.py"),
        command="{bin}/bentoml serve bentoml_service:Linear --port {port}",
        path="/predict",
        body=f'{{"rows": [{ROW}]}}',
        steps=("pip install bentoml torch", "service.py", "bentoml serve", "the request"),
        reload="`--reload`, restarts",
    ),
    Contender(
        *("mosec", "0.9.8", "mosec_server.py", "{bin}/python mosec_server.py --port {port}"),
        path="/inference",
        body=ROW,
        steps=("pip install mosec torch", "server.py", "python server.py", "the request"),
    ),
)


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[records.Verdict]]:
    """Measures all contenders in turns.

    Raises:
        BenchmarkError: one cannot be installed, does not start, or answers wrongly.
    """
    wrk_path()
    servers: dict[str, dict[str, Any]] = {}
    for one in CONTENDERS:
        version = one.version or importlib.metadata.version(OURS)
        about = {"version": version, "steps": one.steps, "page": one.page, "reload": one.reload}
        servers[one.name] = {**about, "lines": one.lines(), "starts_s": [], "runs": []}
        one.bin()
    for turn in range(options.turns):
        first = turn % len(CONTENDERS)
        for contender in CONTENDERS[first:] + CONTENDERS[:first]:
            start_s, load = one_turn(contender, options.seconds)
            servers[contender.name]["starts_s"].append(round(start_s, 2))
            servers[contender.name]["runs"].append(asdict(load))
            print(f"{contender.name}: {start_s:.2f} s, {load.requests_per_s:,.0f} requests/s")
    for server in servers.values():
        rates = [run["requests_per_s"] for run in server["runs"]]
        server["first_answer_s"] = statistics.median(server["starts_s"])
        server["requests_per_s"] = statistics.median(rates)
    about = {"connections": CONNECTIONS, "turns": options.turns, "seconds": options.seconds}
    return {"measured": "a first model", **about, "servers": servers}, verdicts(servers)


def one_turn(contender: Contender, seconds: int) -> tuple[float, LoadReport]:
    """Starts the server, drives it and stops it; returns the seconds to its first answer, too."""
    with tempfile.TemporaryDirectory(prefix="first-", ignore_cleanup_errors=True) as name:
        [port] = child.free_ports(1)
        program = Path(shutil.copy(PROGRAMS / contender.program, name))
        text = program.read_text(encoding="utf-8").replace(PORT_IN_PROGRAM, f"port={port}")
        program.write_text(text, encoding="utf-8")
        command = contender.command.format(bin=contender.bin(), port=port).split()
        server = child.Child(command, child.inherited_environment(), Path(name))
        started_s = time.perf_counter()
        server.start()
        try:
            url = child.local(port) + contender.path
            answer = first_answer(server, url, contender)
            start_s = time.perf_counter() - started_s
            # BentoML took a list of rows.
            if len(answer[0] if contender.name == "BentoML" else answer) != OUTPUTS:
                raise records.BenchmarkError(f"{contender.name} answered {answer}")
            body = contender.body.encode()
            load = Load(url, body, CONNECTIONS, JSON, least_answer_bytes=len("[0,0]"))
            drive_with_wrk(load, WARM_UP_S)
            return start_s, drive_with_wrk(load, seconds)
        finally:
            server.stop()


def first_answer(server: child.Child, url: str, contender: Contender) -> Any:
    """Asks until the server answers with 200; returns what it said."""
    give_up_at = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(trust_env=False, timeout=START_TIMEOUT_S) as client:
        while server.is_running and time.monotonic() < give_up_at:
            with contextlib.suppress(httpx.TransportError):
                reply = client.post(url, content=contender.body, headers={"content-type": JSON})
                if reply.status_code == httpx.codes.OK:
                    return reply.json()
            time.sleep(POLL_S)
    raise records.BenchmarkError(f"{contender.name} gave no answer:\n{server.log_tail()}")


def verdicts(servers: Mapping[str, Any]) -> list[records.Verdict]:
    """Judges whether ours is the shortest way, starts in time, and is ahead of all but mosec."""
    ours = servers[OURS]
    others = [server for name, server in servers.items() if name != OURS]
    steps = min(len(one["steps"]) for one in others)
    lines = min(one["lines"] for one in others)
    judged = [
        at_most(len(ours["steps"]), steps - 1, "steps: {}", "{:d}"),
        at_most(ours["lines"], lines - 1, "lines of Python: {}", "{:d}"),
        at_most(ours["first_answer_s"], MOST_SECONDS, "first answer after {}", "{:.1f} s"),
    ]
    for name in ("LitServe", "BentoML"):
        ratio = ours["requests_per_s"] / servers[name]["requests_per_s"]
        judged.append(at_least(ratio, LEAST_RATIO, f"{{}} {name}'s requests/s", "{:.1f} x"))
    errors = sum(run["errors"] for run in ours["runs"])
    return [*judged, at_most(errors, 0, "errors: {}", "{:d}")]


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


def main() -> int:
    options = records.parse(NAME, turns=(5, 1), seconds=(5, 1))

    def markdown(record: Mapping[str, Any]) -> str:
        if not options.short:
            records.write_block(NAME, table(record), README)
        return (
            f"`python -m benchmarks.first_model` at {records.told(record)}; "
            f"{record['turns']} turns of {record['seconds']} s each.\n\n{table(record)}"
        )

    return records.finish(NAME, lambda: measure(options), markdown, is_short=options.short)


if __name__ == "__main__":
    sys.exit(main())
