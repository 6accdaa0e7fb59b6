"""`ferry shadow`: whether a new server answers as the old one does, before clients depend on it."""

import asyncio
from pathlib import Path
from typing import Any

import click
import uvloop

from batching.settings.settings import SettingsError, UnusableNow
from ferry.console import warn
from ferry.options import NumberRange
from ferry.shadow.comparison_options import Comparison, comparison_options
from ferry.shadow.mirror import Mirror
from ferry.shadow.recording import Recorder, Unreadable, read_requests
from ferry.shadow.replay import Replay
from ferry.shadow.reports import CannotRun, finish, print_result, replay_bar, show_serving


@click.group(invoke_without_command=True)
@comparison_options
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
    comparison = Comparison(**options)
    old, new = comparison.targets()
    result = comparison.result()
    try:
        count = sum(1 for _ in read_requests(recording))  # all of it, before any is sent
        with replay_bar(count, is_quiet=comparison.as_json) as bar:
            replay = Replay(old, new, result, lambda: bar.advance(bar.task_ids[0]))
            asyncio.run(replay.run(read_requests(recording), comparison.connections))
    except KeyboardInterrupt:
        print_result(result, as_json=comparison.as_json)
        raise
    except (Unreadable, OSError) as error:
        raise CannotRun(str(error)) from error
    finish(context, result, as_json=comparison.as_json)


@shadow.command()
@click.pass_context
@comparison_options
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients send what they would send to --old.",
)
@click.option(
    "--share",
    type=NumberRange(0, 1),
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
    type=NumberRange(0, min_open=True),
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

    comparison = Comparison(**options)
    old, new = comparison.targets()
    result = comparison.result()
    try:
        address = listening_address(listen)
    except SettingsError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from error
    record = None if record_path is None else _recorder(context, record_path).write
    mirror = Mirror(new, result, share=share, most_open=most_open, record=record)
    serving = Serving(address, old, new, mirror, comparison.connections)
    is_quiet = comparison.as_json
    try:
        uvloop.run(
            serving.run_until_signal(
                duration_s, lambda: show_serving(result, address, is_quiet=is_quiet)
            )
        )
    except UnusableNow as error:
        raise CannotRun(str(error)) from error
    finish(context, result, as_json=comparison.as_json)


def _recorder(context: click.Context, path: Path) -> Recorder:
    """Returns a recorder that is closed with the command, and then says if it failed."""
    try:
        recorder = Recorder(path)
    except OSError as error:
        raise CannotRun(f"cannot write --record {path}: {error.strerror}") from error

    def close() -> None:
        recorder.close()
        if recorder.failure:
            warn(f"{path} ends early: {recorder.failure}")

    context.call_on_close(close)
    return recorder
