"""`ferry status`: what a running server has, at a glance."""

import json
from collections import Counter
from typing import Any

import click
import httpx
from rich.markup import escape
from rich.table import Table

from ferry.api import Api, error_text
from ferry.commands.models import all_versions, errors_of, worker_states
from ferry.console import out
from ferry.options import inference_option, json_option, management_option


@click.command()
@management_option
@inference_option
@json_option
def status(management_url: str, inference_url: str, as_json: bool) -> None:
    """Show whether the server is ready, its nodes, models, workers and queues.

    Exit status 0 also of a server that is not ready: scripts look at `ready` of --json, or ask
    /readyz.
    """
    with Api(inference_url, answer_timeout_s=10) as inference:
        response = inference.answer("GET", "readyz")
    with Api(management_url, answer_timeout_s=10) as management:
        nodes = management.call("GET", "nodes")
        versions = all_versions(management)
    counts = Counter(worker["node"] for version in versions for worker in version["workers"])
    record = {
        "ready": response.status_code == httpx.codes.OK,
        "reason": "" if response.status_code == httpx.codes.OK else _reason(response),
        "nodes": {node["node"]: counts[node["node"]] for node in nodes},
        "hosts": {node["node"]: node["host"] for node in nodes},
        "models": [_summary(version) for version in versions],
    }
    if as_json:
        click.echo(json.dumps(record, indent=2))
    else:
        _print(record)


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["status"])
    except (ValueError, KeyError, TypeError):  # a proxy's answer, perhaps, or a refusal
        return error_text(response)


def _summary(version: dict[str, Any]) -> dict[str, Any]:
    queue = version["jobQueueStatus"]
    return {
        "model": version["modelName"],
        "version": version["modelVersion"],
        "is_default": version.get("isDefault", False),
        "workers": worker_states(version),
        "workers_per_node": version["minWorkers"],
        "waiting": queue["pendingRequests"],
        "room": queue["remainingCapacity"],
        "errors": errors_of(version),
    }


def _print(record: dict[str, Any]) -> None:
    console = out()
    console.print("[green]ready[/]" if record["ready"] else f"[red]{escape(record['reason'])}[/]")
    nodes = ", ".join(
        f"{name}{f' on {host}' if host else ''} ({count} worker{'s' * (count != 1)})"
        for (name, count), host in zip(
            record["nodes"].items(), record["hosts"].values(), strict=True
        )
    )
    nodes = escape(nodes) or "none runs. `ferry node` starts one."
    console.print(f"Nodes: {nodes}")
    if not record["models"]:
        console.print("No models. `ferry models register` adds one.")
        return
    table = Table("model", "version", "workers", "per node", "waiting", "room", box=None)
    for model in record["models"]:
        states = ", ".join(f"{count} {state}" for state, count in model["workers"].items())
        default = " (default)" if model["is_default"] else ""
        table.add_row(
            escape(model["model"]),
            escape(model["version"] + default),
            states or "none",
            *(str(model[name]) for name in ("workers_per_node", "waiting", "room")),
        )
    console.print(table)
    for model in record["models"]:
        for error in model["errors"]:
            name = escape(f"{model['model']} {model['version']}")
            console.print(f"[red]not loaded:[/] {name}: {escape(error)}", soft_wrap=True)
