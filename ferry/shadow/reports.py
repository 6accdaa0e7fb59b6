"""Shows how far a comparison is, and prints what came of it."""

import asyncio
import json

import click
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ferry.console import err, out
from ferry.shadow.comparison import Verdict
from ferry.shadow.result import Result

_HEADS = (
    *("", "requests", "same", "status", "body", "missed"),
    *("old p50", "p95", "p99 ms", "new p50", "p95", "p99 ms"),
)
_DIFFERENT = 1
# Between two looks at what there is to show.
_LOOK_S = 0.5
# Where no terminal shows progress, a line tells it so often.
_LINE_S = 60.0


class CannotRun(click.ClickException):
    """Nothing can be said of the two servers."""

    exit_code = 2


def replay_bar(count: int, *, is_quiet: bool) -> Progress:
    """Returns a bar for so many requests; shown on a terminal only."""
    console = err()
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    is_hidden = is_quiet or not console.is_terminal
    progress = Progress(*columns, console=console, transient=True, disable=is_hidden)
    progress.add_task("", total=count)
    return progress


async def show_serving(result: Result, address: object, *, is_quiet: bool) -> None:
    """Shows how far it is, until it is cancelled: on a terminal always, else in a line a minute."""
    console = err()
    console.print(f"listening address={address}", soft_wrap=True)
    if is_quiet or not console.is_terminal:
        while not is_quiet:
            await asyncio.sleep(_LINE_S)
            console.print(escape(result.summary()), soft_wrap=True)
        return
    with console.status(result.summary()) as status:
        while True:
            await asyncio.sleep(_LOOK_S)
            status.update(escape(result.summary()))


def finish(context: click.Context, result: Result, *, as_json: bool) -> None:
    """Prints the result, and ends the command with its exit status.

    Raises:
        CannotRun: no answer was compared.
    """
    print_result(result, as_json=as_json)
    if result.compared == result.verdicts[Verdict.MISSED]:
        first = next((text for row in result.rows.values() for text in row.examples), "")
        raise CannotRun(f"nothing was compared{': ' * bool(first)}{first}")
    context.exit(0 if result.is_same else _DIFFERENT)


def print_result(result: Result, *, as_json: bool) -> None:
    record = result.record()
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    console = out()
    grid = Table(*_HEADS, box=None, pad_edge=False)
    for column in grid.columns[1:]:
        column.justify = "right"
    for row in record["rows"]:
        cells = [str(row[one]) for one in ("requests", *Verdict)]
        for side in (row["oldMs"], row["newMs"]):
            cells += [f"{ms:.1f}" for ms in side] or ["-"] * 3
        grid.add_row(escape(row["request"]), *cells)
    console.print(grid)
    for row in record["rows"]:
        for text in row["differences"]:
            console.print(escape(f"{row['request']}, {text}"))
    console.print(f"\n{escape(result.summary())}.")
