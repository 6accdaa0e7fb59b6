"""Says where commands print: results to standard output, progress and complaints to the other."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

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


def print_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints the rows, if there are any, with numbers at the right; no heads if all are empty."""
    table = Table(box=None, show_header=any(heads))
    for head, cells in zip(heads, zip(*rows, strict=True), strict=False):
        is_number = not any(isinstance(cell, str) for cell in cells)
        table.add_column(head, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    if rows:
        out().print(table)


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
