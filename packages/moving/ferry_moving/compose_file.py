"""Says what must change in a compose file's services that run TorchServe."""

import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from ferry_moving.server_check import (
    Effect,
    PartRow,
    UnreadableTarget,
    configuration_rows,
    torchserve_flags,
)

# The places of TorchServe's image.
_CONFIG = "/home/model-server/config.properties"
_CONFIG_VARIABLE = "TS_CONFIG_FILE"
_COMMAND = "torchserve"
_GRPC_PORTS = frozenset({"7070", "7071"})
_NO_GRPC = "there is no gRPC: its clients have to use HTTP, which streams answers, too"
_AFTER_COMMAND = frozenset({"&&", "||", ";", "|", "&"})
_IMAGE = "build this project's image: deploy/docker/Dockerfile, target `server`"

Service = Mapping[str, Any]


def compose_rows(path: Path) -> Iterator[PartRow]:
    """Yields the rows of each service with TorchServe's image or command.

    Raises:
        UnreadableTarget: the file cannot be read, or has no such service.
    """
    try:
        document = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        raise UnreadableTarget(f"cannot read {path}: {why}") from error
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict):
        raise UnreadableTarget(f"{path}: this is no compose file, it has no services")
    known = {name: service for name, service in services.items() if _is_torchserve(service)}
    if not known:
        names = ", ".join(map(str, services)) or "none"
        raise UnreadableTarget(
            f"{path}: no service has torchserve in its image or command ({names})"
        )
    flags = torchserve_flags()
    for name, service in known.items():
        for row in _service_rows(path.parent, service, flags):
            yield replace(row, part=f"{name}: {row.part}".removesuffix(": "))


def _is_torchserve(service: Any) -> bool:
    if not isinstance(service, dict):
        return False
    return any(_COMMAND in word for word in (_scalar(service.get("image")), *_words(service)))


def _scalar(value: Any) -> str:
    """Returns a scalar as text; "" for lists and objects, whose aliases may be circular."""
    return str(value) if isinstance(value, str | int | float) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _words(service: Service) -> list[str]:
    """Returns the words of entry point and command; a shell's script counts as its words."""
    words: list[str] = []
    for part in (service.get("entrypoint"), service.get("command")):
        for word in map(_scalar, part) if isinstance(part, list) else _split(_scalar(part)):
            words += _split(word) if _COMMAND in word else [word]
    return words


def _split(script: str) -> list[str]:
    try:
        return shlex.split(script)
    except ValueError:  # a quote that is not closed; the shell complains of it
        return script.split()


def _service_rows(folder: Path, service: Service, flags: Mapping[str, str]) -> Iterator[PartRow]:
    image = _scalar(service.get("image")) or "built here"
    yield PartRow("image", Effect.CHANGE, f"{image}: {_IMAGE}")
    command = _words(service)
    arguments = _arguments(command)
    if arguments is not None:
        yield from _flag_rows(arguments, flags)
    elif command in ([], ["serve"]):
        yield PartRow("command", Effect.SAME, "starts with the image's own configuration")
    else:
        yield PartRow("command", Effect.NOTE, f"{command[0]} is not known, and has to be there")
    for port in _list(service.get("ports")):
        target = _scalar(port.get("target") if isinstance(port, dict) else port)
        inner = target.rpartition(":")[2]
        is_grpc = inner.partition("/")[0] in _GRPC_PORTS
        effect, text = (Effect.CHANGE, f"{inner}: {_NO_GRPC}") if is_grpc else (Effect.SAME, inner)
        yield PartRow("ports", effect, text)
    mounts = list(_mounts(service))
    for source, target in mounts:
        yield PartRow("volumes", Effect.SAME, f"{source} at {target}")
    variables = _variables(service)
    by_flag = dict(itertools.pairwise(arguments or [])).get("--ts-config")
    named = variables.get(_CONFIG_VARIABLE) or by_flag or _CONFIG
    config = _file_of(folder, mounts, PurePosixPath(named))
    if _CONFIG_VARIABLE in variables:
        yield PartRow(_CONFIG_VARIABLE, Effect.SAME, "names the configuration file")
        variables.pop(_CONFIG_VARIABLE)
    if config is None and named != _CONFIG:
        remedy = f"{named} is not among the volumes: give it to ferry doctor, too"
        yield PartRow("config", Effect.NOTE, remedy)
    if config is not None or variables:
        yield from configuration_rows(config, variables)


def _arguments(words: list[str]) -> list[str] | None:
    """Returns what follows `torchserve`, each flag split from its value; None without it."""
    commands = [n for n, word in enumerate(words) if PurePosixPath(word).name == _COMMAND]
    if not commands:
        return None
    own = itertools.takewhile(lambda word: word not in _AFTER_COMMAND, words[commands[0] + 1 :])
    stripped = [word.rstrip(";") for word in own]
    return [
        part for word in stripped for part in (word.split("=", 1) if word[:2] == "--" else [word])
    ]


def _flag_rows(arguments: list[str], flags: Mapping[str, str]) -> Iterator[PartRow]:
    for flag in (word for word in arguments if word.startswith("-")):
        if flag not in flags:
            yield PartRow(flag, Effect.CHANGE, "TorchServe 0.12 has no such flag, leave it out")
        else:
            is_unused = flags[flag].startswith("No effect")
            yield PartRow(flag, Effect.NOTE if is_unused else Effect.SAME, flags[flag])


def _variables(service: Service) -> dict[str, str | None]:
    """Returns the variables; None is a value that compose takes from elsewhere."""
    given = service.get("environment")
    if isinstance(given, dict):
        pairs = [(_scalar(key), _scalar(value)) for key, value in given.items()]
    else:
        lines = map(_scalar, _list(given))
        pairs = [(key, value) for key, _, value in (line.partition("=") for line in lines)]
    return {key: value if value and "$" not in value else None for key, value in pairs}


def _mounts(service: Service) -> Iterator[tuple[str, str]]:
    """Yields source and target of each volume."""
    for volume in _list(service.get("volumes")):
        if isinstance(volume, dict):
            yield _scalar(volume.get("source")), _scalar(volume.get("target"))
        else:
            source, _, rest = _scalar(volume).partition(":")
            yield source, rest.partition(":")[0] or source


def _file_of(folder: Path, mounts: list[tuple[str, str]], wanted: PurePosixPath) -> Path | None:
    """Returns the file on this machine that the container has at this path."""
    for source, target in mounts:
        if source.startswith((".", "/", "~")) and wanted.is_relative_to(target):
            path = folder / Path(source).expanduser() / wanted.relative_to(target)
            if path.is_file():
                return path
    return None
