"""Collects what was measured against each promise, for the table at the end of a run."""

import os
import re
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import records
from benchmarks.measuring.records import origin, told, with_block, write_record

RESULTS = records.RESULTS / "chaos.json"
DOCUMENT = records.ROOT / "docs" / "reliability.md"
ROW = re.compile(r"^(\| <!--(.+?)-->.*\| )[^|]* \|$", re.MULTILINE)
NOTHING = "\N{EN DASH}"

# What is recorded -> the promise and its bar. The first word is the fault.
PROMISES = {
    "F1 answers": ("child killed: 8 x 200", "<= 1.5 s, <= 2 runs each"),
    "F1 again": ("child killed: its batch waits again", "<= 0.3 s"),
    "F2": ("node killed: its batch waits again", "<= 4 s"),
    "F3": ("kill storm, 150/s", "0 lost, 0 doubled, all 200"),
    "F4": ("one crashing among 32", "31 x 200, 1 x 500, <= 2 runs"),
    "F5": ("two crashing among 16", "14 x 200, 2 x 500, <= 2 runs"),
    "F6": ("out of memory", "that one 507"),
    "F7": ("hanging handler is killed", "<= timeout 1 s + 0.5 s"),
    "F8": ("zombie's result is refused", "1 reply, of the 2nd attempt; stale >= 1"),
    "F9": ("crash before, after the claim", "each answered once"),
    "F10": ("crash after the reply", "each answered once"),
    "F12": ("late reply before re-claim", "accepted once, not run"),
    "F13": ("crash loop: back-off, 503 no_worker, not ready", "gaps >= 0, 1, 2 .. s; <= 1 s"),
    "F14 gone": ("last worker gone for good: 504", "deadline +-100 ms"),
    "F14 replaced": ("last worker replaced, 50 queued", "50 x 200"),
    "F15": ("Redis killed, back empty after 2 s: 30 in flight", "30 x 200"),
    "F16 recovers": ("recovers by itself", "<= 2 s"),
    "F16 new": ("Redis down: new ones told", "503 <= 1 s"),
    "F16 in flight": ("Redis down: in flight", "told by deadline +0.1 s"),
    "F17": ("FLUSHALL: 30 in flight", "30 x 200"),
    "F18": ("CLIENT KILL every 200 ms", "0 lost, all 200"),
    "F19": ("Redis stands still for 2 s", "all answered, 0 false reaps"),
    "F20": ("SCRIPT FLUSH under load", "all 200"),
    "F21": ("any reply cut", "0 lost, 0 doubled, no reuse"),
    "F22 200": ("200 ms latency, 5 % of replies lost", "0 lost, 0 doubled"),
    "F22 100": ("100 ms latency, 5 % of replies lost", "0 lost, 0 doubled"),
    "F23 node": ("maxmemory: node replaced", "all served"),
    "F23 works": ("maxmemory: work goes on", "0 false reaps"),
    "F23 refused": ("maxmemory: refused", "503 queue_memory"),
    "F24": ("fail-over, last 200 ms missing", "200 or 503; no mix-up, no hang"),
    "F25": ("clocks step by +-1 h", "no effect"),
    "F26": ("300 of 600 left the queue", ">= 285 not run"),
    "F27": ("one of a running batch left", "3 x 200, 1 cancelled"),
    "F28": ("queued past the deadline: 504", "deadline +-100 ms"),
    "F29": ("ingress killed, 20 waiting", "20 dropped"),
    "F30": ("3 nodes replaced under load", "all 200, exit 0 <= 8 s"),
    "F31 kept": ("SIGTERM under load, 10 kept connections", "all accepted answered, exit 0 <= 8 s"),
    "F31 waiting": ("SIGTERM to the ingress, 20 accepted", "20 answered, exit 0 <= 8 s"),
    "F32": ("second SIGTERM", "exit <= 1 s, given back"),
    "F33 refusals": ("overload: refusals, p99", "< 50 ms, Retry-After"),
    "F33 goodput": ("overload x3: goodput", ">= 90 % of capacity"),
    "F34 others": ("20 clients that hardly read: others' p90", "< 2 x"),
    "F34 closed": ("unread answers are closed", "<= unread_timeout + 15 s"),
    "F35 closed": ("half-sent requests are closed", "<= 75 s"),
    "F35 others": ("50 half-sent requests", "others unaffected"),
    "F36": ("idle: wait added by a window of 5 ms", "p99 <= 5 + 3 ms"),
    "F38": ("wake-up lost", "progress <= 1 s"),
    "F39": ("10,000 cancelled at the head: claim", "<= 20 ms"),
    "F40": ("state machine", "no counter-example"),
    "F41 keys": ("soak: keys and descriptors", "baseline"),
    "F41 memory": ("soak, 80/s with faults: memory", "<= +10 MB after run-in"),
    "F42": ("bytes of others, a third of the clients leave", "0"),
    "F43 answers": ("mutated requests beside valid clients", "0 wrong, 0 5xx for the valid ones"),
    "F43 memory": ("mutated requests: memory of the ingress", "<= +10 %, +10 MB in the last third"),
    "F44": ("handler's fork comes back: processes that answer", "the worker alone"),
    "F46 power": ("Redis' power fails: jobs of its last second", "<= 1 s of accepts lost"),
    "F46 storm": ("storm over jobs, every part killed", "0 lost, 0 doubled, all succeeded"),
    "F47": ("bytes of others in shared memory, parts killed", "0"),
    "N1 load": ("node's host cut off: load", "all 200"),
    "N1 works": ("node's host joined again: it works", "<= 3 s"),
    "N1 again": ("node's host cut off for 10 s: its requests wait again", "<= 4 s"),
    "N2 idle": ("idle while cut off: first request", "<= 3 s"),
    "N2 recovers": ("ingress' host joined again: it recovers", "<= 3 s"),
    "N2 probes": ("ingress' host cut off: probes", "<= 1 s"),
    "N2 new": ("ingress' host cut off: new ones told", "503 <= 1 s"),
    "N2 deadlines": ("ingress' host cut off for 10 s: deadlines", "told by deadline +0.1 s"),
    "N3 recovers": ("Redis' host joined again: it recovers", "<= 3 s"),
    "N3 probes": ("Redis' host cut off: probes", "<= 1 s"),
    "N3 new": ("Redis' host cut off: new ones told", "503 <= 1 s"),
    "N3 deadlines": ("Redis' host cut off for 10 s: deadlines", "told by deadline +0.1 s"),
    "N4": ("stopped while cut off", "exit 0 <= 8 s"),
}


@dataclass(frozen=True)
class Promise:
    row: str
    promise: str
    bar: str
    measured: str


# Here and not in a conftest.py, of which pytest may import a copy for each folder.
KEPT = pytest.StashKey[dict[Promise, bool]]()


def is_long() -> bool:
    """Returns whether this is the long form, `make chaos`."""
    return os.environ.get("CHAOS_LONG", "") == "1"


def show(kept: dict[Promise, bool]) -> None:
    """Prints the table of promises: bar, measurement and verdict."""
    table = Table("", "promise", "bar", "measured", "verdict", title="Promises under fire")
    for promise in sorted(kept, key=lambda one: (len(one.row), one.row)):
        verdict = "[green]kept" if kept[promise] else "[bold red]BROKEN"
        table.add_row(promise.row, promise.promise, promise.bar, promise.measured, verdict)
    Console(width=150).print(table)


def save(kept: dict[Promise, bool]) -> None:
    """Writes the same as JSON, with commit and machine, and into docs/reliability.md."""
    document = {
        **origin(),
        "form": "long" if is_long() else "short",
        "promises": [
            {**asdict(promise), "kept": is_kept}
            for promise, is_kept in sorted(kept.items(), key=lambda one: one[0].row)
        ],
    }
    write_record(document, RESULTS)
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), document), "utf-8")


def with_table(text: str, document: dict[str, Any]) -> str:
    """Puts what was measured into the last cell of each row that names its promises.

    A row does so in a comment, as readers have no use for the names: `<!--F1 again, F1 answers-->`.
    """
    measured = defaultdict(list)
    for one in document["promises"]:
        verdict = "" if one["kept"] else "**broken:** "
        measured[one["row"], one["promise"]].append(verdict + _readable(one["measured"]))

    def filled(row: re.Match[str]) -> str:
        found = [
            value
            for name in row[2].split(", ")
            if name in PROMISES
            for value in measured[name.split()[0], PROMISES[name][0]]
        ]
        return f"{row[1]}{'; '.join(found) or NOTHING} |"

    return with_block(ROW.sub(filled, text), "chaos", f"`make chaos` at {told(document)}.")


def _readable(measured: str) -> str:
    """Returns `{'200': 42, 'nodes': 3}` as `42 x 200, 3 nodes`."""

    def counted(match: re.Match[str]) -> str:
        return f"{match[2]} {'x ' if match[1][0].isdigit() else ''}{match[1]}"

    return re.sub(r"[{}'()]", "", re.sub(r"'([^']+)': (\d+)", counted, measured))
