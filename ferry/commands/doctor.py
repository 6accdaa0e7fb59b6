"""`ferry doctor`: says what of an archive, or of a TorchServe, will run here."""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Column, Table

from batching.settings.redis_url import RedisUrl
from batching.settings.settings import ENV_PREFIX, SettingsError
from ferry.api import Api, ApiError
from ferry.commands.torchserve import DEFAULTS, completed, torchserve
from ferry.console import out
from ferry.moving.configuration import TS_PREFIX
from ferry.options import json_option, settings_from_flags

if TYPE_CHECKING:
    from ferry.moving.effects import Row
    from workers.doctor.examination import Report

_STYLES = {"note": "yellow", "problem": "red", "must change": "red"}
_REDIS = ("redis://", "rediss://", "unix://", "redis+", "rediss+")
_URLS = ("http://", "https://")
_PROPERTIES = (".properties", ".cfg")
_COMPOSE = (".yml", ".yaml")
_SERVER_VARIABLES = (ENV_PREFIX, TS_PREFIX, "REDIS_URL")
_NOT_FOUND = 404


class CannotExamine(click.ClickException):
    """Tells that the target cannot be read."""

    exit_code = 2


@click.command()
@click.argument("target")
@click.option(
    "--config",
    "--ts-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With an archive: the server's config.properties, to know whether it installs "
    "requirements.txt, and its service_envelope.",
)
@json_option
@click.pass_context
def doctor(context: click.Context, target: str, config: Path | None, as_json: bool) -> None:
    """Examine a model archive, the TorchServe that you have, or a Redis: what will do, what not.

    TARGET is an archive (a file or a folder), of which nothing is executed; or a TorchServe: its
    config.properties (.properties, or a snapshot, .cfg), a compose file (.yml, .yaml), or the URL
    of its management API, such as http://localhost:8081, to which FERRY_TOKEN is the key. Or it is
    the URL of a Redis, redis://HOST:6379: whether it keeps jobs, and drops nothing.

    A config.properties is judged for two commands, `ferry torchserve --ts-config` and `ferry up
    --config`, on this machine: `starts`, or why not.

    Exit status: 0 it can run as it is, 1 something must change, 2 TARGET cannot be read.
    """
    try:
        rows = _moving_rows(target)
    except SettingsError as error:
        raise CannotExamine(str(error)) from error
    if rows is not None:
        _print_moving(context, _without_secrets(target), rows, as_json=as_json)
    elif not Path(target).exists():
        raise CannotExamine(f"there is no {target}")
    else:
        _examine_archive(context, Path(target), config, as_json=as_json)


def _examine_archive(
    context: click.Context, archive: Path, config: Path | None, *, as_json: bool
) -> None:
    # Only here: the other commands load nothing of the workers.
    from workers.doctor.examination import examine  # noqa: PLC0415 - see above

    settings = settings_from_flags(config, {})
    report = examine(
        archive,
        is_installing=settings.install_py_dep_per_model,
        envelope=settings.service_envelope,
    )
    if as_json:
        click.echo(json.dumps(_as_json(report), indent=2))
    else:
        _print_table([(one.part, one.verdict, one.text) for one in report.findings])
        verdict = "[green]will run[/]" if report.will_run else "[red]will not run as it is[/]"
        out(wraps=True).print(f"\n{escape(report.archive)} {verdict}.")
    if not report.will_run:
        context.exit(1)


def _moving_rows(target: str) -> "list[Row] | None":
    """Returns the rows of a TorchServe; None if the target is an archive.

    Raises:
        SettingsError: the target cannot be read.
        CannotExamine: no server answers, or none of TorchServe's.
    """
    # Only here, as above.
    from ferry.moving.compose_file import compose_rows  # noqa: PLC0415
    from ferry.moving.configuration import properties_rows  # noqa: PLC0415
    from ferry.moving.live_server import server_rows  # noqa: PLC0415
    from ferry.moving.redis_server import redis_rows  # noqa: PLC0415
    from ferry.moving.starts import Start  # noqa: PLC0415

    if target.startswith(_REDIS):
        return list(redis_rows(target))
    if target.startswith(_URLS):
        return list(_asking(target, server_rows))
    path = Path(target)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_SERVER_VARIABLES)}
    as_torchserve = Start(
        "ferry torchserve --ts-config", DEFAULTS, completed, environment, needs_model_store=True
    )
    if path.is_file() and path.suffix.lower() in _PROPERTIES:
        as_up = Start("ferry up --config", environment=environment)
        return list(properties_rows(path, [as_torchserve, as_up]))
    if path.is_file() and path.suffix.lower() in _COMPOSE:
        flags = {name: one.help or "" for one in torchserve.params for name in one.opts}
        return list(compose_rows(path, dataclasses.replace(as_torchserve, is_here=False), flags))
    return None


def _without_secrets(target: str) -> str:
    # A URL of Redis may hold a password, and this may end in a log.
    return RedisUrl.parse(target).without_secrets() if target.startswith(_REDIS) else target


def _asking(url: str, examine: Any) -> "Iterator[Row]":
    try:
        with Api(url) as api:
            yield from examine(lambda *path, **query: api.call("GET", *path, **query))
    except click.ClickException as error:
        text = error.format_message()
        if isinstance(error, ApiError) and error.status == _NOT_FOUND:
            text += ". Is this the management API? TorchServe has it on port 8081"
        raise CannotExamine(text) from error


def _print_moving(
    context: click.Context, target: str, rows: "Sequence[Row]", *, as_json: bool
) -> None:
    must_change = sum(row.effect == "must change" for row in rows)
    if as_json:
        record = {
            "target": target,
            "mustChange": must_change,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        click.echo(json.dumps(record, indent=2))
    else:
        _print_table([(row.part, row.effect, row.text) for row in rows])
        things = "nothing" if not must_change else f"{must_change} of {len(rows)} rows"
        out(wraps=True).print(f"\n{escape(target)}: {things} must change.")
    if must_change:
        context.exit(1)


def _as_json(report: "Report") -> dict[str, object]:
    return {
        "archive": report.archive,
        "modelName": report.model_name,
        "modelVersion": report.model_version,
        "willRun": report.will_run,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
    }


def _print_table(rows: list[tuple[str, str, str]]) -> None:
    table = Table("part", "", Column("what was found", overflow="fold"), box=None)
    for part, verdict, text in rows:
        table.add_row(escape(part), f"[{_STYLES.get(verdict, 'green')}]{verdict}[/]", escape(text))
    out(wraps=True).print(table)
