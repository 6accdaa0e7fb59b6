"""Says what to do next with a model that was registered, and what an interrupted one is at."""

import contextlib
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import click
import httpx
from click.core import ParameterSource

from ferry.api import Api
from ferry.client.reaching import is_this_machine

# The text of a registration that was waited for.
_REGISTERED = re.compile(r'Model "([^"]+)" Version: (\S+) registered with (\d+) initial workers')
# A guess is checked at the end of a registration, and a name looked up at Ctrl-C: neither may take
# long.
_CHECK_S = 1.0
_LOOK_UP_S = 0.3


def next_step(api: Api, status: str, management_url: str, inference_url: str) -> str:
    """Returns a line: how to ask the model, or to start its first worker; "" if that is unknown."""
    found = _REGISTERED.match(status)
    if found is None:
        return ""
    name, version, workers = found.groups()
    if workers == "0":
        return f"Start one: ferry models scale {name} --min-worker 1{where(management_url)}\n"
    url = f"{_inference_url(name, management_url, inference_url)}/predictions/{name}"
    if api.call("GET", "models", name)[0]["modelVersion"] != version:
        url += f"/{version}"
    return f"Ask it: curl {shlex.quote(url)} -T FILE\n"


def registering_goes_on(
    archive: str, model_name: str | None, management_url: str, look_up: Callable[[], str]
) -> str:
    """Returns what the server does with a registration whose command is gone.

    Args:
        archive: as it was asked for.
        model_name: as it was asked for, if it was.
        management_url: of the server.
        look_up: finds the model's name; may take long, or fail.
    """
    name = model_name or _in_time(look_up)
    ferry = f"ferry models {{}}{where(management_url)}"
    if not name:
        return f"The server goes on registering {archive}: `{ferry.format('list')}` shows it."
    described, removed = ferry.format(f"describe {name}"), ferry.format(f"unregister {name}")
    return (
        f"The server goes on registering {name}: `{described}` shows it; `{removed}` takes it back."
    )


def where(management_url: str) -> str:
    """Returns the option that a further command needs to reach the same server, or ""."""
    context = click.get_current_context(silent=True)
    is_told = ParameterSource.COMMANDLINE
    if context is None or context.get_parameter_source("management_url") is not is_told:
        return ""
    return f" --management-url {shlex.quote(management_url)}"


def _inference_url(name: str, management_url: str, told: str) -> str:
    context = click.get_current_context()
    if context.get_parameter_source("inference_url") is not ParameterSource.DEFAULT:
        return told.rstrip("/")
    for url in _guesses(management_url, told):
        # The token of one API is no business of the other, or of a stranger at that address.
        with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL):
            asked = f"{url}/v2/models/{name}"
            trusts = not is_this_machine(url)
            answer = httpx.get(asked, timeout=_CHECK_S, trust_env=trusts)
            if answer.status_code != httpx.codes.NOT_FOUND:
                return url
    return "INFERENCE_URL"


def _guesses(management_url: str, usual: str) -> Iterator[str]:
    # `ferry up --port-base` and TorchServe's defaults have the one port before the other.
    with contextlib.suppress(ValueError):
        parts = urlsplit(management_url)
        if parts.port and parts.hostname:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            yield f"{parts.scheme}://{host}:{parts.port - 1}"
    yield usual


def _in_time(look_up: Callable[[], str]) -> str:
    found: list[str] = []

    def look() -> None:
        with contextlib.suppress(click.ClickException):
            found.append(look_up())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_LOOK_UP_S)
    return found[0] if found else ""
