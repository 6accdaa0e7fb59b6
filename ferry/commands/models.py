"""`ferry models` and `ferry status`: the management API as commands."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import httpx
from rich.markup import escape

from batching.models.registration import SERVING
from batching.models.spec import PARAMETERS
from ferry.api import Api, ApiError, complaint
from ferry.console import ending_at_interrupt, out, print_table, spinner
from ferry.options import inference_option, json_option, management_option, version_option
from ferry_client.errors import error_of

_OK, _NOT_FOUND = 200, 404
# GET /models answers at most this many names at a time.
_PAGE_SIZE = 100
_STATUS_TIMEOUT_S = 10.0

# The text of a registration that was waited for.
_REGISTERED = re.compile(r'Model "([^"]+)" Version: (\S+) registered with (\d+) initial workers')
_NO_MODELS = "No models. `ferry models register` adds one."
_WORKER_COLUMNS = ("id", "status", "pid", "gpu", "memoryUsage", "startTime", "host")

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
def register(
    url: str, wait: bool, management_url: str, inference_url: str, **parameters: Any
) -> None:
    """Register an archive: URL is a file in the model store, or an https address.

    Unless the archive or an option says otherwise, the model gets one worker on each node, batches
    of up to 8 requests, and the batch policy `adaptive`.
    """
    query = {"url": url, "synchronous": str(wait).lower(), "defaults": SERVING, **parameters}
    interrupted = f"The server goes on registering {url}: `ferry models list` shows it."
    with ending_at_interrupt(lambda: interrupted):
        said = _change(management_url, "POST", doing=f"Registering {url}", **query)
    if registered := _REGISTERED.match(said):
        name, version, workers = registered.groups()
        if workers == "0":
            click.echo(f"Start one: ferry models scale {name} --min-worker 1")
        else:
            url = f"{inference_url.rstrip('/')}/predictions/{name}/{version}"
            click.echo(f"Ask it: curl {shlex.quote(url)} -T FILE")


@models.command()
@click.argument("model")
@click.option("--min-worker", type=int, required=True, help="Workers per node.")
@click.option("--max-worker", type=int, help="At most, per node. Default: --min-worker.")
@version_option
@wait_option
@management_option
def scale(model: str, version: str, wait: bool, management_url: str, **workers: Any) -> None:
    """Set how many workers each node runs for MODEL."""
    query = {"synchronous": str(wait).lower(), **workers}
    _change(management_url, "PUT", model, version, doing=f"Scaling {model}", **query)


@models.command()
@click.argument("model")
@click.option("--version", default="all", help="Version of the model. Default: all.")
@management_option
@json_option
def describe(model: str, version: str, management_url: str, as_json: bool) -> None:
    """Show the settings, the queue and the workers of MODEL."""
    with Api(management_url) as api:
        versions = api.call("GET", "models", model, version)
    if as_json:
        click.echo(json.dumps(versions, indent=2))
        return
    for record in versions:
        title = f"[bold]{escape(record['modelName'])}[/] version {escape(_version(record))}"
        out().print(title)
        facts = {**record, **record.get("jobQueueStatus", {})}
        plain = [(key, value) for key, value in facts.items() if not isinstance(value, list | dict)]
        print_table(("", ""), [(key, value) for key, value in plain if key != "error"])
        workers = [{**worker, "status": _state(worker)} for worker in record.get("workers", ())]
        rows = [[worker.get(key, "") for key in _WORKER_COLUMNS] for worker in workers]
        print_table(_WORKER_COLUMNS, rows)
        for error in _errors(record):
            out().print(f"[red]not started:[/] {escape(error)}")


@models.command(name="list")
@management_option
@json_option
def list_models(management_url: str, as_json: bool) -> None:
    """List the registered models, with all their versions."""
    with Api(management_url) as api:
        if as_json:
            click.echo(json.dumps(list(_all_models(api)), indent=2))
            return
        rows = [(it["modelName"], _version(it), it["modelUrl"]) for it in _all_versions(api)]
    print_table(("model", "version", "archive"), rows)
    if not rows:
        click.echo(_NO_MODELS)


@models.command()
@click.argument("model")
@version_option
@management_option
def unregister(model: str, version: str, management_url: str) -> None:
    """Remove a version of MODEL, with its workers.

    The default version can only be removed when it is the last one.
    """
    _change(management_url, "DELETE", model, version)


@models.command(name="set-default")
@click.argument("model")
@click.argument("version")
@management_option
def set_default(model: str, version: str, management_url: str) -> None:
    """Send requests for MODEL that name no version to VERSION."""
    _change(management_url, "PUT", model, version, "set-default")


@click.command()
@management_option
@inference_option
@json_option
def status(management_url: str, inference_url: str, as_json: bool) -> None:
    """Show whether the server is ready, its nodes, models, workers and queues.

    The exit status is 0 even if the server is not ready: scripts look at `ready` of --json, or ask
    /readyz.
    """
    with Api(inference_url, answer_timeout_s=_STATUS_TIMEOUT_S) as inference:
        ready = inference.answer("GET", "readyz")
    with Api(management_url, answer_timeout_s=_STATUS_TIMEOUT_S) as management:
        nodes = management.call("GET", "nodes")
        versions = _all_versions(management)
    is_ready = ready.status_code == _OK
    reason = "" if is_ready else _unready_reason(ready)
    counts = Counter(worker["node"] for version in versions for worker in version["workers"])
    summaries: list[Record] = [
        {
            "model": version["modelName"],
            "version": version["modelVersion"],
            "is_default": version.get("isDefault", False),
            "workers": dict(Counter(map(_state, version["workers"]))),
            "workers_per_node": version["minWorkers"],
            "waiting": version["jobQueueStatus"]["pendingRequests"],
            "room": version["jobQueueStatus"]["remainingCapacity"],
            "errors": _errors(version),
        }
        for version in versions
    ]
    if as_json:
        record = {
            "ready": is_ready,
            "reason": reason,
            "nodes": {node["node"]: counts[node["node"]] for node in nodes},
            "hosts": {node["node"]: node["host"] for node in nodes},
            "models": summaries,
        }
        click.echo(json.dumps(record, indent=2))
        return
    console = out()
    console.print("[green]ready[/]" if is_ready else f"[red]{escape(reason)}[/]")
    hosts = [(node["node"], node["host"], counts[node["node"]]) for node in nodes]
    print_table(("node", "host", "workers"), hosts)
    if not nodes:
        console.print("No node runs. `ferry node` starts one.")
    rows = []
    for it in summaries:
        version = f"{it['version']}{' (default)' * it['is_default']}"
        workers = ", ".join(f"{count} {state}" for state, count in it["workers"].items()) or "none"
        numbers = it["workers_per_node"], it["waiting"], it["room"]
        rows.append((it["model"], version, workers, *numbers))
    print_table(("model", "version", "workers", "per node", "waiting", "room"), rows)
    if not rows:
        console.print(_NO_MODELS)
    for it in summaries:
        name = escape(f"{it['model']} {it['version']}")
        for error in it["errors"]:
            console.print(f"[red]not loaded:[/] {name}: {escape(error)}", soft_wrap=True)


def _unready_reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["status"])
    except (ValueError, KeyError, TypeError):  # a proxy's answer, perhaps, or a refusal
        return complaint(error_of(response))


def _all_models(api: Api) -> Iterator[Record]:
    start: str | None = "0"
    while start is not None:
        page = api.call("GET", "models", limit=_PAGE_SIZE, next_page_token=start)
        yield from page["models"]
        start = page.get("nextPageToken") if page["models"] else None


def _all_versions(api: Api) -> list[Record]:
    versions: list[Record] = []
    for model in _all_models(api):
        try:
            versions += api.call("GET", "models", model["modelName"], "all")
        except ApiError as error:
            # It may have been unregistered since it was listed.
            if error.status != _NOT_FOUND:
                raise
    return versions


def _version(record: Record) -> str:
    return f"{record['modelVersion']}{' (default)' if record.get('isDefault') else ''}"


def _errors(record: Record) -> list[str]:
    errors = (record.get("error"), *(worker.get("error") for worker in record.get("workers", ())))
    # Each once: most errors keep all workers from loading.
    return list(dict.fromkeys(filter(None, errors)))


def _state(worker: Record) -> str:
    return str(worker.get("state") or worker["status"])


def _change(management_url: str, method: str, *path: str, doing: str = "", **query: Any) -> str:
    """Prints what the server says of a change, and returns it."""
    is_quiet = query.get("synchronous") != "true"
    with Api(management_url) as api, spinner(doing, is_quiet=is_quiet):
        said: str = api.call(method, "models", *filter(None, path), **query)["status"]
    click.echo(said)
    return said
