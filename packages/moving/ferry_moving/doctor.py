"""`ferry doctor CONFIG`: says what must change in a TorchServe, row by row."""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ferry_client import FerryError
from ferry_client.calls import Call
from ferry_client.connection import Endpoint, Sender
from ferry_client.errors import error_of
from ferry_moving.compose_file import compose_rows
from ferry_moving.server_check import Effect, PartRow, UnreadableTarget, configuration_rows

_STYLES: dict[str, str] = {Effect.NOTE: "yellow", Effect.CHANGE: "red"}
_COMPOSE = (".yml", ".yaml")
_MOST_PAGES = 1000
_KNOWN = "0.12"
# Keys of a version's description that are no settings.
_STATE = frozenset(
    {"modelName", "modelVersion", "modelUrl", "workers", "jobQueueStatus", "loadedAtStartup"}
)
# TorchServe's name in descriptions -> in model-config.yaml, where they differ.
_DESCRIBED_AS = {"stateful": "sequenceBatching"}


@click.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@click.pass_context
def doctor(context: click.Context, target: str, as_json: bool) -> None:
    """Examine the TorchServe that you have: what stays the same, and what must change.

    TARGET is its config.properties (.properties, or a snapshot, .cfg), a compose file (.yml,
    .yaml), or the URL of its management API, to which FERRY_TOKEN is the key.

    Exit status: 0 it can run as it is, 1 something must change, 2 TARGET cannot be read.
    """
    if target.startswith(("http://", "https://")):
        rows = list(_server_rows(target))
    elif not Path(target).is_file():
        raise UnreadableTarget(f"there is no {target}")
    elif Path(target).suffix.lower() in _COMPOSE:
        rows = list(compose_rows(Path(target)))
    else:
        rows = list(configuration_rows(Path(target)))
    must_change = sum(row.effect == Effect.CHANGE for row in rows)
    if as_json:
        record = {"target": target, "mustChange": must_change, "rows": list(map(asdict, rows))}
        click.echo(json.dumps(record, indent=2))
    else:
        _print_table(target, rows, must_change)
    context.exit(1 if must_change else 0)


def _print_table(target: str, rows: Sequence[PartRow], must_change: int) -> None:
    console = Console(highlight=False)
    table = Table("part", "", Column("what was found", overflow="fold"), box=None)
    for row in rows:
        style = _STYLES.get(row.effect, "green")
        table.add_row(escape(row.part), f"[{style}]{row.effect}[/]", escape(row.text))
    console.print(table)
    things = "nothing" if not must_change else f"{must_change} of {len(rows)} rows"
    console.print(f"\n{escape(target)}: {things} must change.")


def _server_rows(url: str) -> Iterator[PartRow]:
    """Yields the rows of a running TorchServe and of each model version that is registered.

    Raises:
        UnreadableTarget: no TorchServe answers there.
    """
    try:
        with contextlib.closing(Sender(Endpoint(url, None), patience_s=0)) as sender:
            about = _of(dict, _get(sender, "api-description"))
            version = str(_of(dict, about.get("info")).get("version", ""))
            effect = Effect.SAME if version.startswith(_KNOWN) else Effect.NOTE
            text = f"TorchServe {version}; this server was compared with {_KNOWN}"
            yield PartRow("server", effect, text)
            models = {name: _versions(sender, name) for name in _model_names(sender)}
    except FerryError as error:
        raise UnreadableTarget(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="ferry-doctor-") as folder:
        config = Path(folder) / "config.properties"
        escaped = json.dumps(models).replace("\\", "\\\\")
        config.write_text(f"models={escaped}\n", encoding="ascii")
        for row in configuration_rows(config, {}):
            if row.part.startswith("model ") or (row.part, row.effect) == ("start", Effect.CHANGE):
                yield row


def _model_names(sender: Sender) -> Iterator[str]:
    token = ""
    for _ in range(_MOST_PAGES):
        page = _of(dict, _get(sender, f"models?limit=100&next_page_token={quote(token)}"))
        for model in _of(list, page.get("models")):
            yield str(_of(dict, model).get("modelName", ""))
        token = str(page.get("nextPageToken") or "")
        if not token:
            return


def _versions(sender: Sender, name: str) -> dict[str, dict[str, Any]]:
    """Returns the settings of each version, in the form of `models` in config.properties."""
    described = [_of(dict, it) for it in _of(list, _get(sender, f"models/{quote(name)}/all"))]
    return {
        str(version.get("modelVersion", "")): {
            "marName": str(version.get("modelUrl", "")),
            **{_DESCRIBED_AS.get(k, k): v for k, v in version.items() if k not in _STATE},
        }
        for version in described
    }


def _get(sender: Sender, path: str) -> Any:
    response = sender.send(Call("GET", f"/{path}"))
    if response.is_error:
        hint = "Is this the management API? TorchServe has it on port 8081"
        raise UnreadableTarget(f"{error_of(response)}. {hint}")
    try:
        return response.json()
    except ValueError:
        return None


def _of(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise UnreadableTarget("this is no answer of TorchServe's management API")
    return value
