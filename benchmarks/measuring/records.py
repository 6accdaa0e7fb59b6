"""What was measured: where and how, the verdicts on it, its JSON, and its table in a document."""

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OURS = "torchferry"
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# Environments of other servers, and records of measurements too short to be cited.
CACHE = ROOT / ".bench"
VERDICTS = {True: "reached", False: "missed", None: "not judged"}


class BenchmarkError(Exception):
    """The measurement cannot be made; the message says what is missing and what would do."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tells whether one bar is reached; None where it could not be judged."""

    is_reached: bool | None
    text: str


def at_most(value: float, bar: float, text: str, form: str) -> Verdict:
    """Judges; `text` has `{}` where the value belongs, which is written as in `form`."""
    return Verdict(value <= bar, f"{text.format(form.format(value))} (at most {form.format(bar)})")


def at_least(value: float, bar: float, text: str, form: str) -> Verdict:
    return Verdict(value >= bar, f"{text.format(form.format(value))} (at least {form.format(bar)})")


def table_of(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns a table in Markdown, all but its first column to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    words = "for a first look: the record stays in .bench/, the documents as they are"
    parser.add_argument("--short", action="store_true", help=words)
    return parser


def main(
    name: str,
    measure: Callable[[bool], Mapping[str, Any]],
    markdown: Callable[[Mapping[str, Any]], str],
) -> int:
    """Runs a program whose only option is `--short`; returns its exit code.

    `measure` is told whether it is short.
    """
    is_short = parser_of(name).parse_args().short
    return guarded(lambda: finish(name, lambda: measure(is_short), markdown, is_short=is_short))


def guarded(measure: Callable[[], int]) -> int:
    """Runs the measurement and returns its exit code; SIGTERM ends its servers as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return measure()
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def finish(
    name: str,
    measure: Callable[[], Mapping[str, Any]],
    markdown: Callable[[Mapping[str, Any]], str],
    *,
    is_short: bool,
) -> int:
    """Measures and publishes; returns the exit code.

    What is measured has `verdicts`; `markdown` goes on from words about command, commit, machine.
    """
    head = {**origin(), "load_average": round(os.getloadavg()[0], 2)}
    measured = measure()
    record = {**head, **measured, "verdicts": [asdict(one) for one in measured["verdicts"]]}
    return publish(
        record,
        name,
        f"`python -m benchmarks.{name}` at {told(record)}; load average before: "
        f"{record['load_average']}. {markdown(record)}",
        is_short=is_short,
    )


def publish(record: Mapping[str, Any], name: str, table: str, *, is_short: bool) -> int:
    """Prints table and verdicts, writes the record, and unless short the table into the journal.

    Returns 0 when all bars are reached, 1 when one is missed, else 2.
    """
    verdicts = record["verdicts"]
    lines = [f"- {VERDICTS[verdict['is_reached']]}: {verdict['text']}" for verdict in verdicts]
    text = "\n".join([table, "", *lines])
    print(f"\n{text}")
    path = (CACHE / "results" if is_short else RESULTS) / f"{name}.json"
    write_record(record, path)
    if not is_short:
        write_block(name, text, RESULTS / "README.md")
    print(f"written to {path}")
    judged = [verdict["is_reached"] for verdict in verdicts]
    return 1 if False in judged else 2 * (None in judged)


def origin() -> dict[str, Any]:
    """Returns time, commit and machine of now, for the head of a record.

    `is_clean`: the code is that commit's. What measurements write may differ: one follows another.
    Where there is no git, or only a copy of the files, BENCH_COMMIT says which commit's they are.
    """
    commit, changes = commit_of(ROOT), ""
    if commit:
        code = (":/", ":/!benchmarks/results", ":/!docs", ":/!README.md")
        changes = _git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", *code)
    else:
        commit = os.environ.get("BENCH_COMMIT", "")
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit or "unknown",
        "is_clean": bool(commit) and not changes,
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "processor": names[0] if names else platform.processor(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
    }


def commit_of(tree: Path) -> str:
    """Returns the commit of a working tree; empty where there is no git."""
    return _git(tree, "rev-parse", "--short=12", "HEAD")


def _git(tree: Path, *words: str) -> str:
    command = ["git", "-C", str(tree), *words]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def told(record: Mapping[str, Any]) -> str:
    """Returns the words about commit and machine that introduce a record's table."""
    where = record["machine"]
    changed = "" if record["is_clean"] else ", with changes that are not committed,"
    return (
        f"{record['commit']}{changed} on {where['cpus']} cores ({where['processor']}), "
        f"Python {where['python']}"
    )


def write_record(record: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_block(name: str, content: str, document: Path) -> None:
    """Replaces the Markdown between two marks of a document."""
    text = with_block(document.read_text(encoding="utf-8"), name, content)
    document.write_text(text, encoding="utf-8")


def with_block(text: str, name: str, content: str) -> str:
    """Returns the text with this Markdown between `<!-- begin NAME -->` and `<!-- end NAME -->`.

    Raises:
        ValueError: the text lacks the marks.
    """
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the document lacks the lines {begin.strip()} and {end.strip()}")
    return f"{head}{begin}{content.strip()}\n\n{end}{tail}"
