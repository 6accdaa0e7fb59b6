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
SHORT_RESULTS = CACHE / "results"
JOURNAL = RESULTS / "README.md"
EXIT_CODES = {True: 0, False: 1, None: 2}
VERDICTS = {True: "reached", False: "missed", None: "not judged"}
_CODE = (":/", ":/!benchmarks/results", ":/!docs", ":/!README.md")


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


def exit_code(record: Mapping[str, Any]) -> int:
    """Returns 0 when all bars are reached, 1 when one is missed, else 2."""
    judged = [verdict["is_reached"] for verdict in record["verdicts"]]
    if False in judged:
        return EXIT_CODES[False]
    return EXIT_CODES[None if None in judged else True]


def verdict_lines(record: Mapping[str, Any]) -> list[str]:
    return [f"- {VERDICTS[one['is_reached']]}: {one['text']}" for one in record["verdicts"]]


def table_of(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns a table in Markdown, all but its first column to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    words = "for a first look: the record stays in .bench/, the documents as they are"
    parser.add_argument("--short", action="store_true", help=words)
    return parser


def parse(name: str, **defaults: tuple[int, int]) -> argparse.Namespace:
    """Reads `--short` and these options, each of which has a default, and one for a short run."""
    parser = parser_of(name)
    for option in defaults:
        parser.add_argument(f"--{option}", type=positive)
    options = parser.parse_args()
    for option, values in defaults.items():
        if getattr(options, option) is None:
            setattr(options, option, values[options.short])
    return options


def guarded(measure: Callable[[], int]) -> int:
    """Runs the measurement and returns its exit code; SIGTERM ends its servers as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return measure()
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return EXIT_CODES[None]
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def finish(
    name: str,
    measure: Callable[[], tuple[Mapping[str, Any], Iterable[Verdict]]],
    markdown: Callable[[Mapping[str, Any]], str],
    *,
    is_short: bool,
) -> int:
    """Measures, prints and writes the record; returns the exit code.

    Unless short, the table is also in benchmarks/results/README.md: words about command, commit and
    machine, which `markdown` goes on from, and the verdicts.
    """

    def run() -> int:
        head = {**origin(), "load_average": round(os.getloadavg()[0], 2)}
        about, verdicts = measure()
        record = {**head, **about, "verdicts": [asdict(verdict) for verdict in verdicts]}
        intro = (
            f"`python -m benchmarks.{name}` at {told(record)}; load average before: "
            f"{record['load_average']}. "
        )
        table = "\n".join([intro + markdown(record), "", *verdict_lines(record)])
        print(table)
        publish(record, name, table, is_short=is_short)
        return exit_code(record)

    return guarded(run)


def publish(record: Mapping[str, Any], name: str, table: str, *, is_short: bool) -> None:
    """Writes the record and, unless short, its table into the journal."""
    path = (SHORT_RESULTS if is_short else RESULTS) / f"{name}.json"
    write_record(record, path)
    if not is_short:
        write_block(name, table)
    print(f"written to {path}")


def origin() -> dict[str, Any]:
    """Returns time, commit and machine of now, for the head of a record.

    `is_clean`: the code is that commit's. What measurements write may differ: one follows another.
    Where there is no git, or only a copy of the files, BENCH_COMMIT says which commit's they are.
    """
    commit, changes = commit_of(ROOT), ""
    if commit:
        changes = _git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", *_CODE)
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


def record_of(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def write_record(record: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_block(name: str, content: str, document: Path = JOURNAL) -> None:
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
