"""`ferry models` and `ferry status`: the management API as commands."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import click
import httpx
from click.core import ParameterSource
from rich.markup import escape
from rich.table import Table

from batching.models.registration import SERVING
from batching.models.spec import PARAMETERS
from ferry.api import Api, ApiError, error_text
from ferry.console import ending_at_interrupt, out, spinner
from ferry.options import inference_option, json_option, management_option, version_option

# GET /models answers at most this many names at a time.
PAGE_SIZE = 100

# The text of a registration that was waited for.
_REGISTERED = re.compile(r'Model "([^"]+)" Version: (\S+) registered with (\d+) initial workers')
_NO_MODELS = "No models. `ferry models register` adds one."

Command = TypeVar("Command", bound=Callable[..., Any])
Record = dict[str, Any]

wait_option = click.option(
    "--wait/--no-wait", default=True, help="Wait until the workers have loaded."
)


def parameter_options(command: Command) -> Command:
    for parameter in reversed([it for it in PARAMETERS if it.rest]):
        name = f"--{parameter.rest.replace('_', '-')}"
        kind = click.Choice(parameter.choices) if parameter.choices else parameter.kind
        unit = parameter.unit.upper() or None
        description = parameter.doc.replace("`", "")
        command = click.option(name, type=kind, metavar=unit, help=description)(command)
    return command


@click.group()
def models() -> None:
    """Register, scale, describe and remove models."""


@models.command()
@click.argument("url")
@click.option("--model-name", help="Name to register it under. Default: the archive's.")
@click.option("--handler", help="Handler to run instead of the archive's.")
@parameter_options
@wait_option
@management_option
@inference_option
@json_option
def register(
    url: str,
    wait: bool,
    management_url: str,
    inference_url: str,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Register an archive: URL is a file in the model store, or an https address.

    Unless the archive or an option says otherwise, the model gets one worker on each node, batches
    of up to 8 requests, and the batch policy `adaptive`.
    """
    query = {"url": url, "synchronous": str(wait).lower(), "defaults": SERVING, **parameters}
    interrupted = f"The server goes on registering {url}: `ferry models list` shows it."
    with Api(management_url) as api:
        with (
            ending_at_interrupt(lambda: interrupted),
            spinner(f"Registering {url}", is_quiet=as_json or not wait),
        ):
            answer = api.call("POST", "models", **query)
        _print_status(answer, as_json)
        if not as_json and (registered := _REGISTERED.match(answer["status"])):
            click.echo(_next_step(api, registered, management_url, inference_url))


def _next_step(api: Api, registered: re.Match[str], management_url: str, inference_url: str) -> str:
    """Returns a line: how to ask the model, or to start its first worker."""
    name, version, workers = registered.groups()
    if workers == "0":
        return f"Start one: ferry models scale {name} --min-worker 1"
    source = click.get_current_context().get_parameter_source("inference_url")
    management = httpx.URL(management_url)
    if source is ParameterSource.DEFAULT and management.port:
        # `ferry up --port-base` and TorchServe's defaults have the one port before the other.
        inference_url = str(management.copy_with(port=management.port - 1))
    url = f"{inference_url.rstrip('/')}/predictions/{name}"
    if api.call("GET", "models", name)[0]["modelVersion"] != version:
        url += f"/{version}"
    return f"Ask it: curl {shlex.quote(url)} -T FILE"


@models.command()
@click.argument("model")
@click.option("--min-worker", type=int, required=True, help="Workers per node.")
@click.option("--max-worker", type=int, help="At most, per node. Default: --min-worker.")
@version_option
@wait_option
@management_option
@json_option
def scale(
    model: str, version: str, wait: bool, management_url: str, as_json: bool, **workers: Any
) -> None:
    """Set how many workers each node runs for MODEL."""
    with spinner(f"Scaling {model}", is_quiet=as_json or not wait):
        query = {"synchronous": str(wait).lower(), **workers}
        answer = _called(management_url, "PUT", model, version, **query)
    _print_status(answer, as_json)


@models.command()
@click.argument("model")
@click.option("--version", default="all", help="Version of the model. Default: all.")
@management_option
@json_option
def describe(model: str, version: str, management_url: str, as_json: bool) -> None:
    """Show the settings, the queue and the workers of MODEL."""
    versions = _called(management_url, "GET", model, version)
    if as_json:
        click.echo(json.dumps(versions, indent=2))
        return
    for record in versions:
        _print_version(record)


@models.command(name="list")
@management_option
@json_option
def list_models(management_url: str, as_json: bool) -> None:
    """List the registered models, with all their versions."""
    with Api(management_url) as api:
        if as_json:
            click.echo(json.dumps(_all_models(api), indent=2))
            return
        versions = _all_versions(api)
    if not versions:
        click.echo(_NO_MODELS)
        return
    _print_table(
        ("model", "version", "archive"),
        [(it["modelName"], _marked_version(it), it["modelUrl"]) for it in versions],
    )


@models.command()
@click.argument("model")
@version_option
@management_option
@json_option
def unregister(model: str, version: str, management_url: str, as_json: bool) -> None:
    """Remove a version of MODEL, with its workers.

    The default version can only be removed when it is the last one.
    """
    _print_status(_called(management_url, "DELETE", model, version), as_json)


@models.command(name="set-default")
@click.argument("model")
@click.argument("version")
@management_option
@json_option
def set_default(model: str, version: str, management_url: str, as_json: bool) -> None:
    """Send requests for MODEL that name no version to VERSION."""
    _print_status(_called(management_url, "PUT", model, version, "set-default"), as_json)


@click.command()
@management_option
@inference_option
@json_option
def status(management_url: str, inference_url: str, as_json: bool) -> None:
    """Show whether the server is ready, its nodes, models, workers and queues.

    The exit status is 0 even if the server is not ready: scripts look at `ready` of --json, or ask
    /readyz.
    """
    with Api(inference_url, answer_timeout_s=10) as inference:
        response = inference.answer("GET", "readyz")
    with Api(management_url, answer_timeout_s=10) as management:
        nodes = management.call("GET", "nodes")
        versions = _all_versions(management)
    is_ready = response.status_code == httpx.codes.OK
    counts = Counter(worker["node"] for version in versions for worker in version["workers"])
    record = {
        "ready": is_ready,
        "reason": "" if is_ready else _unready_reason(response),
        "nodes": {node["node"]: counts[node["node"]] for node in nodes},
        "hosts": {node["node"]: node["host"] for node in nodes},
        "models": [_summary(version) for version in versions],
    }
    if as_json:
        click.echo(json.dumps(record, indent=2))
    else:
        _print_summary(record)


def _unready_reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["status"])
    except (ValueError, KeyError, TypeError):  # a proxy's answer, perhaps, or a refusal
        return error_text(response)


def _summary(version: Record) -> Record:
    queue = version["jobQueueStatus"]
    return {
        "model": version["modelName"],
        "version": version["modelVersion"],
        "is_default": version.get("isDefault", False),
        "workers": dict(Counter(_state(worker) for worker in version["workers"])),
        "workers_per_node": version["minWorkers"],
        "waiting": queue["pendingRequests"],
        "room": queue["remainingCapacity"],
        "errors": _errors(version),
    }


def _print_summary(record: Record) -> None:
    console = out()
    console.print("[green]ready[/]" if record["ready"] else f"[red]{escape(record['reason'])}[/]")
    hosts = {name: f" on {host}" if host else "" for name, host in record["hosts"].items()}
    nodes = ", ".join(
        f"{name}{hosts[name]} ({count} worker{'s' * (count != 1)})"
        for name, count in record["nodes"].items()
    )
    console.print(f"Nodes: {escape(nodes) or 'none runs. `ferry node` starts one.'}")
    if not record["models"]:
        console.print(_NO_MODELS)
        return
    rows = [
        (
            model["model"],
            f"{model['version']}{' (default)' if model['is_default'] else ''}",
            ", ".join(f"{count} {state}" for state, count in model["workers"].items()) or "none",
            *(model[name] for name in ("workers_per_node", "waiting", "room")),
        )
        for model in record["models"]
    ]
    _print_table(("model", "version", "workers", "per node", "waiting", "room"), rows)
    for model in record["models"]:
        for error in model["errors"]:
            name = escape(f"{model['model']} {model['version']}")
            console.print(f"[red]not loaded:[/] {name}: {escape(error)}", soft_wrap=True)


def _all_models(api: Api) -> list[dict[str, str]]:
    listed: list[dict[str, str]] = []
    start: str | None = "0"
    while start is not None:
        page = api.page("models", limit=PAGE_SIZE, next_page_token=start)
        listed += page["models"]
        start = page.get("nextPageToken") if page["models"] else None
    return listed


def _all_versions(api: Api) -> list[Record]:
    versions: list[Record] = []
    for model in _all_models(api):
        try:
            versions += api.call("GET", "models", model["modelName"], "all")
        except ApiError as error:
            # It may have been unregistered since it was listed.
            if error.status != httpx.codes.NOT_FOUND:
                raise
    return versions


def _marked_version(record: Record) -> str:
    return f"{record['modelVersion']}{' (default)' if record.get('isDefault') else ''}"


def _errors(record: Record) -> list[str]:
    errors = (record.get("error"), *(worker.get("error") for worker in record.get("workers", ())))
    # Each once: most errors keep all workers from loading.
    return list(dict.fromkeys(filter(None, errors)))


def _state(worker: Record) -> str:
    return str(worker.get("state") or worker["status"])


def _called(management_url: str, method: str, *path: str, **query: Any) -> Any:
    with Api(management_url) as api:
        return api.call(method, "models", *filter(None, path), **query)


def _print_status(answer: Record, as_json: bool) -> None:
    click.echo(json.dumps(answer, indent=2) if as_json else answer["status"])


def _print_table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(*heads, box=None, show_header=any(heads))
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    if rows:
        out().print(table)


def _print_version(record: Record) -> None:
    version = escape(_marked_version(record))
    out().print(f"[bold]{escape(record['modelName'])}[/] version {version}")
    facts = {**record, **record.get("jobQueueStatus", {})}
    plain = [(key, value) for key, value in facts.items() if not isinstance(value, list | dict)]
    _print_table(("", ""), [(key, value) for key, value in plain if key != "error"])
    columns = ("id", "status", "pid", "gpu", "memoryUsage", "startTime", "host")
    workers = [{**worker, "status": _state(worker)} for worker in record.get("workers", ())]
    _print_table(columns, [tuple(it.get(key, "") for key in columns) for it in workers])
    for error in _errors(record):
        out().print(f"[red]not started:[/] {escape(error)}")
