"""Says where commands print: results to standard output, progress and complaints to the other."""

import contextlib
import datetime
import os
import sys
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.markup import escape

# What shells report for a program that Ctrl-C has ended.
_EXIT_INTERRUPTED = 130

# Wider than any result.
_WHOLE = 10_000


def out(*, wraps: bool = False) -> Console:
    """Returns the console for results, which are never cut: names and ids are copied and piped.

    With `wraps`, sentences in tables are broken where the terminal ends.
    """
    return Console(highlight=False, width=None if wraps else _WHOLE)


def err() -> Console:
    return Console(stderr=True, highlight=False)


def warn(text: str) -> None:
    err().print(f"[yellow]warning:[/] {escape(text)}", soft_wrap=True)


def age_text(created_at: str) -> str:
    """Returns how long ago this time of RFC 3339 was, in its largest unit."""
    then = datetime.datetime.fromisoformat(created_at)
    seconds = max(0.0, (datetime.datetime.now(datetime.UTC) - then).total_seconds())
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextlib.contextmanager
def spinner(text: str, *, is_quiet: bool = False) -> Iterator[None]:
    """Shows on a terminal that work goes on; in a log file that would be noise."""
    console = err()
    show = console.is_terminal and not is_quiet
    with console.status(escape(text)) if show else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def ending_at_interrupt(interruption: Callable[[], str]) -> Iterator[None]:
    """Ends the process at Ctrl-C with this text, without waiting for threads or connections."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\n{interruption()}", err=True)
        sys.stdout.flush()
        os._exit(_EXIT_INTERRUPTED)
