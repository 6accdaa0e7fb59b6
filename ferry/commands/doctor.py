"""`ferry doctor`: says what of an archive will run here, or whether a Redis keeps jobs."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Column, Table

from batching.settings.redis_url import RedisUrl
from batching.settings.settings import Settings, SettingsError
from batching.store.server_check import SAFE_POLICY, ServerFacts, facts_of
from ferry.console import out
from ferry.main import added_command
from ferry.options import json_option, settings_from_flags

_STYLES = {"note": "yellow", "problem": "red", "must change": "red"}
_REDIS = ("redis://", "rediss://", "unix://", "redis+", "rediss+")
# What the package torchferry-moving reads.
_URLS = ("http://", "https://")
_CONFIGURATIONS = (".properties", ".cfg", ".yml", ".yaml")


class CannotExamine(click.ClickException):
    """Says that the target cannot be read."""

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
    """Examine a model archive, a TorchServe or a Redis, and say what must change.

    TARGET is an archive (a file or a folder), whose code is not run, or the URL of a Redis, such as
    redis://HOST:6379, which should keep jobs and drop nothing.

    With torchferry-moving it may be a TorchServe: its config.properties (.properties, or a
    snapshot, .cfg), a compose file (.yml, .yaml), or the URL of its management API, such as
    http://localhost:8081, with the key in FERRY_TOKEN. For a config.properties it says whether
    `ferry torchserve --ts-config` and `ferry up --config` would start with it on this machine.

    Exit status: 0 nothing must change, 1 something must change, 2 TARGET cannot be read.
    """
    path = Path(target)
    if target.startswith(_URLS) or (path.is_file() and path.suffix.lower() in _CONFIGURATIONS):
        context.invoke(added_command("doctor"), target=target, as_json=as_json)
        return
    rows: Iterable[tuple[str, str, str]]
    if target.startswith(_REDIS):
        try:
            rows = list(_redis_rows(facts_of(Settings(redis_url=target))))
        except SettingsError as error:
            raise CannotExamine(str(error)) from error
        except OSError as error:
            raise CannotExamine(f"this Redis does not answer: {error}") from error
        must_change = sum(effect == "must change" for _, effect, _ in rows)
        name = RedisUrl.parse(target).without_secrets()
        lines = [dict(zip(("part", "effect", "text"), row, strict=True)) for row in rows]
        record = {"target": name, "mustChange": must_change, "rows": lines}
        sentence = f"{escape(name)}: {must_change or 'nothing'} must change."
    else:
        if not path.exists():
            raise CannotExamine(f"there is no {target}")
        # Only here: the other commands load nothing of the workers.
        from workers.examination import examine  # noqa: PLC0415 - see above

        settings = settings_from_flags(config, {})
        report = examine(
            path,
            is_installing=settings.install_py_dep_per_model,
            envelope=settings.service_envelope,
        )
        rows, must_change = report.findings, not report.will_run
        record = {
            "archive": report.archive,
            "modelName": report.model_name,
            "modelVersion": report.model_version,
            "willRun": report.will_run,
            "findings": [finding._asdict() for finding in report.findings],
        }
        verdict = "[green]will run[/]" if report.will_run else "[red]will not run as it is[/]"
        sentence = f"{escape(report.archive)} {verdict}."
    if as_json:
        click.echo(json.dumps(record, indent=2))
    else:
        table = Table("part", "", Column("what was found", overflow="fold"), box=None)
        for part, effect, text in rows:
            style = _STYLES.get(effect, "green")
            table.add_row(escape(part), f"[{style}]{effect}[/]", escape(text))
        console = out(wraps=True)
        console.print(table)
        console.print(f"\n{sentence}")
    context.exit(1 if must_change else 0)


def _redis_rows(facts: ServerFacts) -> Iterator[tuple[str, str, str]]:
    """Yields what the server's settings mean for requests and jobs; a cluster has one asked."""
    age = ": use 7.0 or later" if facts.is_too_old else ""
    yield "version", "note" if age else "same", f"Redis {facts.version}{age}"
    if facts.policy == SAFE_POLICY:
        yield "maxmemory-policy", "same", f"{SAFE_POLICY}: nothing accepted is dropped"
    else:
        text = f"{facts.policy} may drop what was accepted: set it to {SAFE_POLICY}"
        yield "maxmemory-policy", "must change", text
    if not facts.is_writing_file:
        text = (
            'no append-only file: jobs end with this Redis, and say so ("durable": false). Where '
            "they must not, set appendonly to yes; requests do not need it"
        )
        yield "persistence", "note", text
    elif facts.has_write_failed:
        text = "the append-only file could not be written, and Redis takes no writes: a full disk?"
        yield "persistence", "must change", text
    else:
        loss = {
            "everysec": ", appendfsync everysec: a machine that fails loses the last second",
            "always": ", appendfsync always: a machine that fails loses nothing; writes are slow",
            "no": ", appendfsync no: a machine that fails loses more: set it to everysec",
        }.get(facts.fsync, "")
        yield "persistence", "note" if facts.fsync == "no" else "same", f"append-only file{loss}"
