"""What the services of a compose file that run TorchServe need here."""

import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from batching.settings.files import load_yaml, read_properties
from batching.settings.settings import SettingsError
from batching.settings.torchserve_keys import ENABLE_ENVIRONMENT, IGNORED
from ferry.moving.configuration import TS_PREFIX, properties_rows, variable_row
from ferry.moving.effects import Effect, Row
from ferry.moving.starts import Start

# The places of TorchServe's image.
_CONFIG = "/home/model-server/config.properties"
_CONFIG_VARIABLE = "TS_CONFIG_FILE"
_COMMAND = "torchserve"
_SERVE = "serve"
_GRPC_PORTS = {"7070": "grpc_inference_port", "7071": "grpc_management_port"}
_AFTER_COMMAND = frozenset({"&&", "||", ";", "|", "&"})
_IMAGE = "build this project's image: deploy/docker/Dockerfile, target `server`"


def compose_rows(path: Path, start: Start, flags: Mapping[str, str]) -> Iterator[Row]:
    """Yields the rows of each service with TorchServe's image or command.

    Args:
        path: the file.
        start: as the image starts its server.
        flags: those of `ferry torchserve`, with their help.

    Raises:
        SettingsError: the file cannot be read, or has no such service.
    """
    services = _services(path)
    found = {name: one for name, one in services.items() if _is_torchserve(one)}
    if not found:
        names = ", ".join(map(str, services)) or "none"
        raise SettingsError(f"{path}: no service has torchserve in its image or command ({names})")
    for name, service in found.items():
        for row in _Service(path.parent, service, start, flags).rows():
            yield replace(row, part=f"{name}: {row.part}".removesuffix(": "))


def _services(path: Path) -> dict[str, Any]:
    try:
        document = load_yaml(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict):
        raise SettingsError(f"{path}: this is no compose file, it has no services")
    return services


def _text(value: Any) -> str:
    """Returns a scalar as text. Lists and objects, whose aliases may go in circles, are none."""
    return str(value) if isinstance(value, str | int | float) else ""


def _is_torchserve(service: Any) -> bool:
    if not isinstance(service, dict):
        return False
    return _COMMAND in _text(service.get("image")) or any(
        _COMMAND in word for word in _words(service)
    )


def _words(service: Mapping[str, Any]) -> list[str]:
    """Returns the words of entry point and command; in place of a shell's script, those of it."""
    found: list[str] = []
    for part in (service.get("entrypoint"), service.get("command")):
        for word in map(_text, part) if isinstance(part, list) else _split(_text(part)):
            found += _split(word) if _COMMAND in word else [word]
    return found


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed; the shell complains of it
        return text.split()


def _pairs(value: Any) -> list[tuple[str, str]]:
    """Returns what compose takes as an object or as a list of `key=value`."""
    if isinstance(value, dict):
        return [(_text(key), _text(one)) for key, one in value.items()]
    lines = map(_text, value) if isinstance(value, list) else ()
    return [(key, one) for key, _, one in (line.partition("=") for line in lines)]


class _Service:
    """One service. `folder` is that of the compose file."""

    def __init__(
        self,
        folder: Path,
        service: Mapping[str, Any],
        start: Start,
        flags: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._service = service
        self._flags = flags
        self._environment = dict(_pairs(service.get("environment")))
        # Values that compose takes from elsewhere are not known here.
        known = {key: one for key, one in self._environment.items() if one and "$" not in one}
        self._start = replace(start, environment=known)

    def rows(self) -> Iterator[Row]:
        """Yields all of them."""
        image = _text(self._service.get("image")) or "built here"
        yield Row("image", Effect.CHANGE, f"{image}: {_IMAGE}")
        yield from self._command()
        config = self._config()
        yield from self._variables(config)
        yield from self._ports()
        for source, target in self._mounts():
            yield Row("volumes", Effect.SAME, f"{source} at {target}")
        if config is not None:
            yield from properties_rows(config, [self._start])
        elif self._named_config() != _CONFIG:
            text = f"{self._named_config()} is not among the volumes: give it to ferry doctor, too"
            yield Row("config", Effect.NOTE, text)

    def _arguments(self) -> list[str] | None:
        """Returns what follows `torchserve`, each flag split from its value; None without it."""
        words = _words(self._service)
        places = [n for n, word in enumerate(words) if PurePosixPath(word).name == _COMMAND]
        if not places:
            return None
        found: list[str] = []
        for word in words[places[0] + 1 :]:
            if word in _AFTER_COMMAND:
                break
            found += word.rstrip(";").split("=", 1) if word.startswith("--") else [word.rstrip(";")]
        return found

    def _command(self) -> Iterator[Row]:
        arguments = self._arguments()
        if arguments is None:
            words = _words(self._service)
            if words in ([], [_SERVE]):
                yield Row("command", Effect.SAME, "starts with the image's own configuration")
            else:
                yield Row("command", Effect.NOTE, f"{words[0]} is not known, and has to be there")
            return
        for flag in (word for word in arguments if word.startswith("-")):
            text = self._flags.get(flag)
            if text is None:
                yield Row(flag, Effect.CHANGE, "TorchServe 0.12 has no such flag, leave it out")
            else:
                is_unused = text.startswith("No effect")
                yield Row(flag, Effect.NOTE if is_unused else Effect.SAME, text)

    def _named_config(self) -> str:
        arguments = self._arguments() or []
        after = dict(itertools.pairwise(arguments))
        return self._environment.get(_CONFIG_VARIABLE) or after.get("--ts-config") or _CONFIG

    def _config(self) -> Path | None:
        """Returns the file on this machine that the container has as its configuration."""
        wanted = PurePosixPath(self._named_config())
        for source, target in self._mounts():
            if source.startswith((".", "/", "~")) and wanted.is_relative_to(target):
                base = self._folder / Path(source).expanduser()
                path = base / wanted.relative_to(target)
                if path.is_file():
                    return path
        return None

    def _variables(self, config: Path | None) -> Iterator[Row]:
        properties = read_properties(config) if config is not None else {}
        is_enabled = properties.get(ENABLE_ENVIRONMENT, "").strip().lower() == "true"
        for variable in self._environment:
            if variable == _CONFIG_VARIABLE:
                yield Row(variable, Effect.SAME, "names the configuration file")
            elif variable.startswith(TS_PREFIX):
                yield variable_row(variable, is_enabled=is_enabled)

    def _ports(self) -> Iterator[Row]:
        ports = self._service.get("ports")
        for port in ports if isinstance(ports, list) else []:
            inner = _text(port.get("target") if isinstance(port, dict) else port).rpartition(":")[2]
            reason = IGNORED.get(_GRPC_PORTS.get(inner.partition("/")[0], ""))
            text = f"{inner}: {reason}" if reason else inner
            yield Row("ports", Effect.CHANGE if reason else Effect.SAME, text)

    def _mounts(self) -> list[tuple[str, str]]:
        volumes = self._service.get("volumes")
        found = []
        for one in volumes if isinstance(volumes, list) else []:
            if isinstance(one, dict):
                found.append((_text(one.get("source")), _text(one.get("target"))))
            else:
                source, _, rest = _text(one).partition(":")
                found.append((source, rest.partition(":")[0] or source))
        return found
