"""`ferry doctor`: says what of an archive will run here, before it is deployed."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from ferry.console import out
from ferry.options import json_option, settings_from_flags

if TYPE_CHECKING:
    from workers.doctor.examination import Report

_STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command()
@click.argument("archive", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--config",
    "--ts-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The server's config.properties, to know whether it installs requirements.txt.",
)
@json_option
@click.pass_context
def doctor(context: click.Context, archive: Path, config: Path | None, as_json: bool) -> None:
    """Examine a model archive: what will run, what will not, and why.

    Nothing of ARCHIVE is executed. Exit status 1 if something keeps the model from running.
    """
    # Only here: the other commands load nothing of the workers.
    from workers.doctor.examination import examine  # noqa: PLC0415 - see above

    settings = settings_from_flags(config, {})
    report = examine(archive, is_installing=settings.install_py_dep_per_model)
    if as_json:
        click.echo(json.dumps(_as_json(report), indent=2))
    else:
        _print(report)
    if not report.will_run:
        context.exit(1)


def _as_json(report: "Report") -> dict[str, object]:
    return {
        "archive": report.archive,
        "modelName": report.model_name,
        "modelVersion": report.model_version,
        "willRun": report.will_run,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
    }


def _print(report: "Report") -> None:
    console = out(wraps=True)
    table = Table("part", "", "what was found", box=None)
    for finding in report.findings:
        style = _STYLES[finding.verdict.value]
        verdict = f"[{style}]{finding.verdict.value}[/]"
        table.add_row(escape(finding.part), verdict, escape(finding.text))
    console.print(table)
    verdict = "[green]will run[/]" if report.will_run else "[red]will not run as it is[/]"
    console.print(f"\n{escape(report.archive)} {verdict}.")
