"""`ferry container`: the entry point of the image `server`, which starts as TorchServe's does.

Variables of Vertex AI and SageMaker become ordinary settings, as FERRY_ variables; what the
operator has set stays.
Source: TorchServe 0.12 docker/dockerd-entrypoint.sh, docker/config.properties; Vertex AI "Custom
container requirements for inference"; SageMaker "Custom inference code with hosting services";
sagemaker-inference `environment.py` and sagemaker-pytorch-inference `ts_environment.py`, as
interfaces.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from batching.errors import ServeError
from batching.settings.files import read_properties
from batching.settings.loading import load_settings
from batching.settings.settings import SettingsError
from ferry.commands.torchserve import CONFIG_VARIABLE, has_ended, running_server
from ferry.options import UnusableSettings

CONFIG = Path("/home/model-server/config.properties")
_NO_START = frozenset({"--stop", "-v", "--version", "--help"})
# The process says `torchserve` in its command line: `torchserve --stop` knows it by that.
_FOREGROUND = (sys.executable, "-P", "-m", "ferry.main", "torchserve", "--foreground")
_LOOK_S = 1.0
_NOT_FOUND = 127
_BY_SIGNAL = 128

Variables = Mapping[str, str]

# Where neither platform looks: nothing outside of the container reaches these.
_PRIVATE_PORTS = range(8081, 8084)
_ONLY_MODEL = "/invocations"
_HEALTH_ROUTES = frozenset({"/ping", "/readyz", "/livez", "/v2/health/live", "/v2/health/ready"})
_FOLDER_IS_ARCHIVE = "MAR-INF"
# The name of a model whose folder has none.
_MODEL = "model"
# SageMaker's own names for the settings of one model, and model-config.yaml's.
_MODEL_SETTINGS = {
    "SAGEMAKER_TS_BATCH_SIZE": "batchSize",
    "SAGEMAKER_TS_MAX_BATCH_DELAY": "maxBatchDelay",
    "SAGEMAKER_TS_MIN_WORKERS": "minWorkers",
    "SAGEMAKER_TS_MAX_WORKERS": "maxWorkers",
    "SAGEMAKER_TS_RESPONSE_TIMEOUT": "responseTimeout",
}


@click.command(
    hidden=True,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def container(command: tuple[str, ...]) -> None:
    """Start as TorchServe's image does: `serve` (or nothing), or a command of its user's."""
    name, *arguments = command or ("serve",)
    variables: dict[str, str] = {}
    if name == "serve":
        config = Path(os.environ.get(CONFIG_VARIABLE) or CONFIG)
        try:
            properties = read_properties(config) if config.is_file() else {}
            variables = platform_variables(os.environ, properties)
        except SettingsError as error:
            raise UnusableSettings(str(error)) from error
        with contextlib.suppress(OSError):  # the server starts whatever becomes of its output
            for variable, value in variables.items():
                click.echo(f"{variable}={value}")
        arguments = ["--ts-config", str(CONFIG), "--disable-token-auth", *arguments]
    if name == "serve" or (name == "torchserve" and not _NO_START & set(arguments)):
        # The server itself gets the signals then, and its exit code is the container's.
        argv = [*_FOREGROUND, *arguments]
        os.execve(argv[0], argv, {**os.environ, **variables})  # noqa: S606 - ourselves
    # A manifest may have the whole line as one word; TorchServe's script evaluates what it gets.
    sys.exit(_run(["sh", "-c", name] if not arguments and " " in name else [name, *arguments]))


def _run(argv: Sequence[str]) -> int:
    """Runs the command, waits for a server that it left running, and returns its exit code."""
    try:
        process = subprocess.Popen(argv)  # noqa: S603 - the container's own user chose it
    except OSError as error:
        click.echo(f"Error: {argv[0]}: {error.strerror}", err=True)
        return _NOT_FOUND

    def pass_on(number: int, _frame: object) -> None:
        process.send_signal(number)
        if (server := running_server()) is not None:
            server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    exit_code = process.wait()
    # TorchServe's script never ends after the command; here a stopped server ends it.
    if (server := running_server()) is not None:
        while not has_ended(server):
            time.sleep(_LOOK_S)
    return exit_code if exit_code >= 0 else _BY_SIGNAL - exit_code


def platform_variables(environment: Variables, properties: Variables) -> dict[str, str]:
    """Returns the FERRY_ variables that this platform's own ones stand for; {} on no platform.

    Raises:
        SettingsError: the platform asks for something that this image does not do.
    """
    folder = Path(environment.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    is_sagemaker = any(name.startswith("SAGEMAKER_") for name in environment)
    variables: dict[str, str] = {}
    if "AIP_HTTP_PORT" in environment:
        variables = _vertex(environment, properties)
    elif is_sagemaker or _has_files(folder / "model"):
        variables = _sagemaker(environment, folder)
    return {name: value for name, value in variables.items() if name not in environment}


def _vertex(environment: Variables, properties: Variables) -> dict[str, str]:
    # Parts of the ingress, which no other command of this process needs.
    from ingress.torchserve.routes import parse_prediction_path  # noqa: PLC0415 - see above

    variables = _addresses(_number("AIP_HTTP_PORT", environment["AIP_HTTP_PORT"]))
    aliases: list[str] = []
    predict, health = environment.get("AIP_PREDICT_ROUTE"), environment.get("AIP_HEALTH_ROUTE")
    target = parse_prediction_path(predict or _ONLY_MODEL)
    # `/anything/predict` is an old path of TorchServe's, which names a model.
    if predict and predict != _ONLY_MODEL and (target is None or target.takes_query):
        aliases.append(f"{predict}={_ONLY_MODEL}")
    if health and health not in _HEALTH_ROUTES:
        aliases.append(f"{health}=/readyz")
    variables["FERRY_PATH_ALIASES"] = ",".join(aliases)
    if "service_envelope" not in properties and "TS_SERVICE_ENVELOPE" not in environment:
        # {"instances": [...]} comes, and {"predictions": [...]} goes.
        variables["FERRY_SERVICE_ENVELOPE"] = "json"
    storage = environment.get("AIP_STORAGE_URI", "")
    if "://" in storage:
        raise SettingsError(
            f"AIP_STORAGE_URI={storage}: this image reads folders, not buckets. Copy the "
            "archive into the image, or mount the bucket: docs/vertex-ai.md"
        )
    return variables | (_models_in(Path(storage), environment) if storage else {})


def _sagemaker(environment: Variables, folder: Path) -> dict[str, str]:
    port = _number("SAGEMAKER_BIND_TO_PORT", environment.get("SAGEMAKER_BIND_TO_PORT", "8080"))
    variables = _addresses(port, _safe_ports(environment))
    if environment.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true":
        # SageMaker itself registers models, at the port of predictions, which only it reaches.
        return {
            **variables,
            "FERRY_DEFAULT_WORKERS_PER_MODEL": "1",
            "FERRY_MANAGEMENT_ADDRESS": variables["FERRY_INFERENCE_ADDRESS"],
            "FERRY_ALLOW_OPEN_MANAGEMENT": "true",
            "FERRY_ENABLE_MODEL_API": "true",
            "FERRY_MODEL_STORE": str(folder / "models"),
        }
    if _has_files(folder / "model"):
        variables |= _models_in(folder / "model", environment)
    return variables


def _safe_ports(environment: Variables) -> Sequence[int]:
    name = "SAGEMAKER_SAFE_PORT_RANGE"
    if not (port_range := environment.get(name)):
        return _PRIVATE_PORTS
    first, _, last = port_range.partition("-")
    ports = range(_number(name, first), _number(name, last) + 1)
    if len(ports) < len(_PRIVATE_PORTS):
        raise SettingsError(f"{name}={port_range} has fewer than three ports")
    return ports


def _addresses(port: int, private_ports: Sequence[int] = _PRIVATE_PORTS) -> dict[str, str]:
    """Returns the listeners' addresses; predictions may have one of the private ports."""
    management, metrics = [other for other in private_ports if other != port][:2]
    return {
        "FERRY_INFERENCE_ADDRESS": f"http://0.0.0.0:{port}",
        "FERRY_MANAGEMENT_ADDRESS": f"http://127.0.0.1:{management}",
        "FERRY_METRICS_ADDRESS": f"http://127.0.0.1:{metrics}",
    }


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _models_in(folder: Path, environment: Variables) -> dict[str, str]:
    """Returns the variables that serve a platform's folder: archives, or an unpacked one."""
    archives = sorted(folder.glob("*.mar"))
    if (folder / _FOLDER_IS_ARCHIVE).is_dir():
        archives, loaded = [folder], f"{_MODEL}={folder}"
    elif archives:
        loaded = ",".join(path.name for path in archives)
    else:
        raise SettingsError(
            f"{folder} holds neither a .mar nor an unpacked archive, with its "
            f"{_FOLDER_IS_ARCHIVE}: make one with torch-model-archiver"
        )
    variables = {"FERRY_MODEL_STORE": str(folder), "FERRY_LOAD_MODELS": loaded}
    settings = {
        key: _number(name, environment[name])
        for name, key in _MODEL_SETTINGS.items()
        if name in environment
    }
    if {"minWorkers", "maxWorkers"} & settings.keys():  # they count together only
        settings.setdefault("maxWorkers", settings.setdefault("minWorkers", 1))
    if settings:
        models = dict(_name_and_version(path, environment) for path in archives)
        records = {name: {version: settings} for name, version in models.items()}
        variables["FERRY_MODELS"] = json.dumps(records)
    return variables


def _name_and_version(path: Path, environment: Variables) -> tuple[str, str]:
    # Only here: no other command of this process reads archives.
    from workers.archives.model_archive import inspect_archive  # noqa: PLC0415 - see above
    from workers.archives.staging import work_dir_of  # noqa: PLC0415 - see above

    try:
        # Unpacks it into the folder where the node looks.
        work_dir = work_dir_of(load_settings(None, environment)[0])
        archive = inspect_archive(path, path.name, work_dir)
    except ServeError as error:
        raise SettingsError(f"{path}: {error.message}") from error
    return _MODEL if path.is_dir() else archive.model_name, archive.model_version


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise SettingsError(f"{name}={text!r} is not a whole number") from error
