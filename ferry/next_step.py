"""Says what to do next with a model that was registered, and what an interrupted one is at."""

import contextlib
import re
import shlex
import threading
from collections.abc import Callable

import click
import httpx
from click.core import ParameterSource

from ferry.api import Api
from ferry_client.connection import is_this_machine

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
        return f"Start one: ferry models scale {name} --min-worker 1{_where(management_url)}\n"
    url = f"{_inference_url(name, management_url, inference_url)}/predictions/{name}"
    if api.call("GET", "models", name)[0]["modelVersion"] != version:
        url += f"/{version}"
    return f"Ask it: curl {shlex.quote(url)} -T FILE\n"


def registering_goes_on(
    archive: str, model_name: str | None, management_url: str, look_up: Callable[[], str]
) -> str:
    """Returns what the server does with a registration whose command is gone.

    `look_up` finds the model's name, if it was not asked for; it may take long, or fail.
    """
    name, told = model_name or _in_time(look_up), _where(management_url)
    if not name:
        return f"The server goes on registering {archive}: `ferry models list{told}` shows it."
    return (
        f"The server goes on registering {name}: `ferry models describe {name}{told}` shows it; "
        f"`ferry models unregister {name}{told}` takes it back."
    )


def _where(management_url: str) -> str:
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
    # `ferry up --port-base` and TorchServe's defaults have the one port before the other.
    management = httpx.URL(management_url)
    beside = [management.copy_with(port=management.port - 1)] if management.port else []
    for url in (*(str(one).rstrip("/") for one in beside), told):
        # The token of one API is no business of the other, or of a stranger at that address.
        with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL):
            asked = f"{url}/v2/models/{name}"
            trusts = not is_this_machine(url)
            answer = httpx.get(asked, timeout=_CHECK_S, trust_env=trusts)
            if answer.status_code != httpx.codes.NOT_FOUND:
                return url
    return "INFERENCE_URL"


def _in_time(look_up: Callable[[], str]) -> str:
    found: list[str] = []

    def look() -> None:
        with contextlib.suppress(click.ClickException):
            found.append(look_up())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_LOOK_UP_S)
    return found[0] if found else ""
