"""`ferry shadow`: whether a new server answers as the old one does, before clients depend on it."""

import asyncio
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from batching.process.stop_signals import StopEvents
from batching.settings.sources import SettingsError, UnusableNow
from ferry.api import INFERENCE_TOKEN_VARIABLE, token_header
from ferry.console import err, out, warn
from ferry.options import json_option
from ferry.shadow.comparison import Tolerance, Verdict
from ferry.shadow.mirror import Mirror
from ferry.shadow.recording import Recorder, Unreadable, read_requests
from ferry.shadow.replay import Replay
from ferry.shadow.result import Result
from ferry.shadow.target import Target

OLD_TOKEN_VARIABLE = "FERRY_OLD_TOKEN"  # noqa: S105 - its name
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


class _Range(click.FloatRange):
    """A range that NaN is outside of."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


_OPTIONS = (
    click.option("--old", help="URL of the server that is trusted."),
    click.option("--new", help="URL of the server that is tried."),
    click.option(
        "--tolerance",
        type=_Range(0, 1),
        default=1e-4,
        show_default=True,
        help="How far numbers in JSON may differ, relative to the larger one. Two integers are "
        "equal or not.",
    ),
    click.option(
        "--near-zero",
        type=_Range(0),
        default=1e-8,
        show_default=True,
        help="Numbers that are no farther apart than this are equal, too.",
    ),
    click.option(
        "--ignore",
        multiple=True,
        metavar="PATH",
        help="JSON path that may differ, such as $.time or $[*].id. May be repeated.",
    ),
    click.option(
        "--connections",
        type=click.IntRange(1, 1000),
        default=4,
        show_default=True,
        help="Most requests at a time to the new server.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=_Range(0, 86_400, min_open=True),
        default=120.0,
        show_default=True,
        help="Seconds to wait for an answer.",
    ),
    json_option,
)


def _options(command: Any) -> Any:
    for option in reversed(_OPTIONS):  # click lists the last one that was applied first
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The options that both forms of the command share."""

    old: str | None
    new: str | None
    tolerance: float
    near_zero: float
    ignore: tuple[str, ...]
    connections: int
    timeout_s: float
    as_json: bool

    def result(self) -> Result:
        return Result(Tolerance(self.tolerance, self.near_zero, self.ignore))

    def targets(self) -> tuple[Target, Target]:
        if not self.old or not self.new:
            raise click.UsageError("give --old URL and --new URL")
        new_token = token_header(INFERENCE_TOKEN_VARIABLE) or token_header()
        try:
            old = Target(self.old, token_header(OLD_TOKEN_VARIABLE), self.timeout_s)
            return old, Target(self.new, new_token, self.timeout_s)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


@click.group(invoke_without_command=True)
@_options
@click.option(
    "--requests",
    "recording",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Recorded requests: JSON lines, or a .har file.",
)
@click.pass_context
def shadow(context: click.Context, /, recording: Path | None, **options: Any) -> None:
    """Send the same requests to two servers and compare their answers.

    --requests has a JSON object in each line: {"method": "POST", "path": "/predictions/m",
    "headers": {"content-type": "application/json"}, "body": ...}. Instead of body, body_base64 or
    body_file (a path from the recording's folder on). Browsers and mitmproxy write .har files.

    FERRY_TOKEN is the key for the new server, FERRY_OLD_TOKEN that for the old one. What is
    printed has numbers and JSON paths, but no texts of the answers.

    Exit status: 0 all answers are the same, 1 some differ or are missing, 2 nothing was compared.
    """
    if context.invoked_subcommand is not None:
        if recording or options["old"] or options["new"]:
            raise click.UsageError("write options behind `serve`")
        return
    if recording is None:
        raise click.UsageError("give --requests FILE, or use `ferry shadow serve`")
    comparison = _Comparison(**options)
    old, new = comparison.targets()
    result = comparison.result()
    try:
        count = sum(1 for _ in read_requests(recording))  # all of it, before any is sent
        with _bar(count, is_quiet=comparison.as_json) as bar:
            replay = Replay(old, new, result, lambda: bar.advance(bar.task_ids[0]))
            asyncio.run(replay.run(read_requests(recording), comparison.connections))
    except KeyboardInterrupt:
        _print(result, as_json=comparison.as_json)
        raise
    except (Unreadable, OSError) as error:
        raise CannotRun(str(error)) from error
    _finish(context, result, as_json=comparison.as_json)


@shadow.command()
@click.pass_context
@_options
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients send what they would send to --old.",
)
@click.option(
    "--share",
    type=_Range(0, 1),
    default=1.0,
    show_default=True,
    help="How many of the requests the new server gets, too, at random; 0.1 is a tenth.",
)
@click.option(
    "--queue",
    "most_open",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Most copies that may wait for the new server; more are dropped and counted.",
)
@click.option(
    "--duration",
    "duration_s",
    type=_Range(0, min_open=True),
    help="Seconds after which to stop. Default: when told to, by Ctrl-C or SIGTERM.",
)
@click.option(
    "--record",
    "record_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file for the mirrored requests, WITH THEIR BODIES, for --requests. Default: nothing "
    "is written.",
)
def serve(  # noqa: PLR0917 - click passes all of them by name
    context: click.Context,
    listen: str,
    share: float,
    most_open: int,
    duration_s: float | None,
    record_path: Path | None,
    **options: Any,
) -> None:
    """Pass clients' requests on to the old server, and send a share of them to the new one, too.

    Clients get the old server's answers and never wait for the new one. Whatever they send reaches
    both servers: give the addresses for predictions, not those for management.
    """
    # Only here: the other commands load nothing of the ingress.
    from ferry.shadow.serving import Serving, listening_address  # noqa: PLC0415 - see above

    comparison = _Comparison(**options)
    old, new = comparison.targets()
    result = comparison.result()
    try:
        address = listening_address(listen)
        recorder = None if record_path is None else Recorder(record_path)
    except SettingsError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from error
    except OSError as error:
        raise CannotRun(f"cannot write --record {record_path}: {error.strerror}") from error
    record = None
    if recorder is not None:
        context.call_on_close(recorder.close)
        record = recorder.write
    mirror = Mirror(new, result, share=share, most_open=most_open, record=record)
    serving = Serving(address, old, new, mirror, comparison.connections)

    async def serving_until_stopped() -> None:
        signals = StopEvents()
        signals.listen()
        if duration_s is not None:
            asyncio.get_running_loop().call_later(duration_s, signals.stop.set)
        await serving.run(signals, lambda: _shown(result, address, is_quiet=comparison.as_json))

    try:
        uvloop.run(serving_until_stopped())
    except UnusableNow as error:
        raise CannotRun(str(error)) from error
    if recorder is not None and recorder.failure:
        warn(f"{record_path} ends early: {recorder.failure}")
    _finish(context, result, as_json=comparison.as_json)


def _bar(count: int, *, is_quiet: bool) -> Progress:
    console = err()
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    is_hidden = is_quiet or not console.is_terminal
    progress = Progress(*columns, console=console, transient=True, disable=is_hidden)
    progress.add_task("", total=count)
    return progress


async def _shown(result: Result, address: object, *, is_quiet: bool) -> None:
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


def _finish(context: click.Context, result: Result, *, as_json: bool) -> None:
    _print(result, as_json=as_json)
    if result.compared == result.verdicts[Verdict.MISSED]:
        first = next((text for row in result.rows.values() for text in row.examples), "")
        raise CannotRun(f"nothing was compared{': ' * bool(first)}{first}")
    context.exit(0 if result.is_same else _DIFFERENT)


def _print(result: Result, *, as_json: bool) -> None:
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
