"""`ferry shadow`: compares a new server's answers with the old one's, before clients use it."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from ferry_client import FerryError
from ferry_client.connection import TOKEN_VARIABLE, token_of
from ferry_moving.comparison import Tolerance, Verdict, compare
from ferry_moving.proxy import Proxy, TargetServer, serve
from ferry_moving.recording import RecordedRequest, Recorder, UnreadableRecording, read_requests
from ferry_moving.report import Result

_OLD_TOKEN_VARIABLE = "FERRY_OLD_TOKEN"  # noqa: S105 - its name
_INFERENCE_TOKEN_VARIABLE = "FERRY_INFERENCE_TOKEN"  # noqa: S105 - its name
# The progress is shown anew at this interval on a terminal, and elsewhere.
_LOOK_S, _LINE_S = 0.5, 60.0
_OPTIONS = (
    click.option("--old", help="URL of the server that is trusted."),
    click.option("--new", help="URL of the server that is tried."),
    click.option(
        "--tolerance",
        type=click.FloatRange(0, 1),
        default=1e-4,
        show_default=True,
        help="How far numbers in JSON may differ, relative to the larger one. Two integers are "
        "equal or not.",
    ),
    click.option(
        "--near-zero",
        type=click.FloatRange(0),
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
        type=click.FloatRange(0, 86_400, min_open=True),
        default=120.0,
        show_default=True,
        help="Seconds to wait for an answer.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON for machines."),
)


class CannotCompare(click.ClickException):
    """Says that the two servers cannot be compared."""

    exit_code = 2


def _comparison_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):  # click lists options in the reverse order
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@_comparison_options
@click.option(
    "--requests",
    "recording",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Recorded requests, as JSON lines.",
)
@click.pass_context
def shadow(context: click.Context, /, recording: Path | None, **options: Any) -> None:
    """Send the same requests to two servers and compare their answers.

    Each line of --requests is a JSON object: {"method": "POST", "path": "/predictions/m",
    "headers": {"content-type": "application/json"}, "body": ...}. Instead of body, body_base64 or
    body_file (a path from the recording's folder on).

    FERRY_INFERENCE_TOKEN, or else FERRY_TOKEN, is the key for the new server, FERRY_OLD_TOKEN that
    for the old one. It prints numbers and JSON paths, but no texts of the answers.

    Exit status: 0 all answers are the same, 1 some differ or are missing, 2 nothing was compared.
    """
    if context.invoked_subcommand is not None:
        if recording or options["old"] or options["new"]:
            raise click.UsageError("write the options after `serve`")
        return
    if recording is None:
        raise click.UsageError("give --requests FILE, or use `ferry shadow serve`")
    targets, result = _targets(options), _result(options)
    console = Console(stderr=True)
    is_hidden = options["as_json"] or not console.is_terminal
    try:
        count = sum(1 for _ in read_requests(recording))  # reads all before any is sent
        with Progress(console=console, transient=True, disable=is_hidden) as bar:
            advance = partial(bar.advance, bar.add_task("", total=count))
            requests = read_requests(recording)
            asyncio.run(_replay(requests, targets, result, options["connections"], advance))
    except KeyboardInterrupt:
        result.show(as_json=options["as_json"])
        raise
    except (UnreadableRecording, OSError) as error:
        raise CannotCompare(str(error)) from error
    _finish(context, result, as_json=options["as_json"])


async def _replay(
    requests: Iterator[RecordedRequest],
    targets: tuple[TargetServer, TargetServer],
    result: Result,
    connections: int,
    advance: Callable[[], object],
) -> None:
    """Sends each request to both servers, one after the other, as they may share a machine.

    Odd requests go to the old server first, even ones to the new one.
    """
    old, new = targets

    async def send_some() -> None:
        for request in requests:
            sides = (old, new) if request.number % 2 else (new, old)
            answers = {side: await side.send(request) for side in sides}
            compared = compare(answers[old], answers[new], result.tolerance)
            result.add(request, answers[old], answers[new], compared)
            advance()

    async with old.client, new.client:
        await asyncio.gather(*(send_some() for _ in range(connections)))


@shadow.command("serve")
@click.pass_context
@_comparison_options
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients send what they would send to --old.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
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
    type=click.FloatRange(0, 1e9, min_open=True),
    help="Seconds after which to stop. Default: when told to, by Ctrl-C or SIGTERM.",
)
@click.option(
    "--record",
    "record_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file for the mirrored requests, WITH THEIR BODIES, for --requests. Default: nothing "
    "is written.",
)
def serve_shadow(context: click.Context, /, record_path: Path | None, **options: Any) -> None:
    """Pass clients' requests on to the old server, and send a share of them to the new one, too.

    Clients get the old server's answers and never wait for the new one. Whatever they send reaches
    both servers: give the addresses for predictions, not those for management.
    """
    targets, result, address = _targets(options), _result(options), _address(options["listen"])
    try:
        recorder = None if record_path is None else Recorder(record_path)
    except OSError as error:
        complaint = f"cannot write --record {record_path}: {error.strerror}"
        raise CannotCompare(complaint) from error
    proxy = Proxy(
        *targets,
        result,
        share=options["share"],
        most_open=options["most_open"],
        recorder=recorder,
    )

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if options["duration_s"] is not None:
            loop.call_later(options["duration_s"], stop.set)
        show = partial(_show, result, options["listen"], is_quiet=options["as_json"])
        await serve(proxy, address, options["connections"], stop, show)

    try:
        asyncio.run(run())
    except OSError as error:
        raise CannotCompare(f"cannot listen on {options['listen']}: {error}") from error
    if recorder is not None:
        recorder.close()
        if recorder.failure:
            click.echo(f"warning: {record_path} ends early: {recorder.failure}", err=True)
    _finish(context, result, as_json=options["as_json"])


def _targets(options: dict[str, Any]) -> tuple[TargetServer, TargetServer]:
    if not options["old"] or not options["new"]:
        raise click.UsageError("give --old URL and --new URL")
    try:
        new_token = token_of(_INFERENCE_TOKEN_VARIABLE) or token_of(TOKEN_VARIABLE)
        old = TargetServer(options["old"], token_of(_OLD_TOKEN_VARIABLE), options["timeout_s"])
        return old, TargetServer(options["new"], new_token, options["timeout_s"])
    except (ValueError, FerryError) as error:
        raise click.UsageError(str(error)) from error


def _result(options: dict[str, Any]) -> Result:
    return Result(Tolerance(options["tolerance"], options["near_zero"], options["ignore"]))


def _address(listen: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"http://{listen}")
        if parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise click.BadParameter(f"{listen!r}: write HOST:PORT", param_hint="--listen")


async def _show(result: Result, address: str, *, is_quiet: bool) -> None:
    """Shows the progress until cancelled: on a terminal always, else in a line a minute."""
    console = Console(stderr=True, highlight=False)
    console.print(f"listening address=http://{address}", soft_wrap=True)
    is_live = console.is_terminal and not is_quiet
    with console.status(result.summary()) if is_live else contextlib.nullcontext() as status:
        while True:
            await asyncio.sleep(_LOOK_S if status else _LINE_S)
            if status:
                status.update(escape(result.summary()))
            elif not is_quiet:
                console.print(escape(result.summary()), soft_wrap=True)


def _finish(context: click.Context, result: Result, *, as_json: bool) -> None:
    """Prints the result, and ends the command with its exit status.

    Raises:
        CannotCompare: no answer was compared.
    """
    result.show(as_json=as_json)
    if result.verdicts.total() == result.verdicts[Verdict.MISSED]:
        first = next((text for row in result.rows.values() for text in row.examples), "")
        raise CannotCompare(f"nothing was compared{': ' * bool(first)}{first}")
    context.exit(0 if result.record()["isSame"] else 1)
