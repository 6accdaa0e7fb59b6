"""What measurements with bars of their own share: verdicts, a record, where it goes, exit codes."""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from benchmarks.measuring.load import BenchmarkError
from benchmarks.measuring.records import (
    RESULTS,
    SHORT_RESULTS,
    origin,
    write_block,
    write_record,
)

EXIT_CODES = {True: 0, False: 1, None: 2}
WORDS = {True: "reached", False: "missed", None: "not judged"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tells whether one bar is reached; None where its server was not measured."""

    is_reached: bool | None
    text: str


def is_reached(record: Mapping[str, Any]) -> bool | None:
    """Returns whether all bars are reached; None when one was not judged and none missed."""
    found = [verdict["is_reached"] for verdict in record["verdicts"]]
    if False in found:
        return False
    return None if None in found else True


def end_servers_on_sigterm() -> None:
    """Lets SIGTERM unwind the stack as Ctrl-C does, so that the servers end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def positive(text: str) -> int:
    """Returns the value of an option that counts something.

    Raises:
        ArgumentTypeError: it is less than 1.
    """
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def at_most(value: float, bar: float, text: str, form: str) -> Verdict:
    """Judges whether the value is at most the bar.

    Args:
        value: what was measured.
        bar: what is allowed.
        text: with `{}` where the value belongs.
        form: how value and bar are written, such as `{:.1f} ms`.
    """
    return Verdict(value <= bar, f"{text.format(form.format(value))} (at most {form.format(bar)})")


def at_least(value: float, bar: float, text: str, form: str) -> Verdict:
    """Judges whether the value is at least the bar; arguments as `at_most`."""
    return Verdict(value >= bar, f"{text.format(form.format(value))} (at least {form.format(bar)})")


def to_record(
    measured: str, about: Mapping[str, Any], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """Returns everything that a claim citing this measurement needs, as a JSON object."""
    return {
        "measured": measured,
        **origin(),
        **about,
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }


def verdict_lines(record: Mapping[str, Any]) -> list[str]:
    """Returns one line per bar."""
    return [f"{WORDS[one['is_reached']]}: {one['text']}" for one in record["verdicts"]]


def finish(
    name: str,
    measure: Callable[[], dict[str, Any]],
    markdown: Callable[[Mapping[str, Any]], str],
    *,
    is_short: bool,
) -> int:
    """Prints and writes the measurement; returns the exit code.

    Unless short, the table is also in benchmarks/results/README.md.
    """
    end_servers_on_sigterm()
    console = Console(highlight=False, soft_wrap=True)
    try:
        record = measure()
    except BenchmarkError as error:
        console.print(str(error), style="red", markup=False)
        return EXIT_CODES[None]
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    path = (SHORT_RESULTS if is_short else RESULTS) / f"{name}.json"
    write_record(record, path)
    lines = verdict_lines(record)
    table = markdown(record)
    if not is_short:
        write_block(name, "\n".join([table, "", *(f"- {line}" for line in lines)]))
    console.print("\n".join([table, "", *lines, f"written to {path}"]), markup=False)
    return EXIT_CODES[is_reached(record)]
