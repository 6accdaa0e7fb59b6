"""What every measurement shares: where it was made, its JSON, and its table in a document."""

import contextlib
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OURS = "torchferry"
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# Environments of other servers, and records of measurements too short to be cited.
CACHE = ROOT / ".bench"
SHORT_RESULTS = CACHE / "results"
JOURNAL = RESULTS / "README.md"
_CODE = (":/", ":/!benchmarks/results", ":/!docs", ":/!README.md")


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
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit or "unknown",
        "is_clean": bool(commit) and not changes,
        "machine": machine(),
    }


def commit_of(tree: Path) -> str:
    """Returns the commit of a working tree; empty where there is no git."""
    return _git(tree, "rev-parse", "--short=12", "HEAD")


def machine() -> dict[str, Any]:
    """Describes the machine, without which figures cannot be compared."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def told(record: Mapping[str, Any]) -> str:
    """Returns the words about commit and machine that introduce a record's table."""
    where = record["machine"]
    changed = "" if record["is_clean"] else ", with changes that are not committed,"
    return (
        f"{record['commit']}{changed} on {where['cpus']} cores ({where['processor']}), "
        f"Python {where['python']}"
    )


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """Writes the record to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_block(name: str, content: str, document: Path = JOURNAL) -> None:
    """Replaces the Markdown between two marks of a document.

    Raises:
        ValueError: it lacks the marks.
    """
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


def _git(tree: Path, *words: str) -> str:
    command = ["git", "-C", str(tree), *words]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
