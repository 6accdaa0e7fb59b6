"""Command-line options that several commands share.

Every setting is an option of `ferry up`, `ferry ingress` and `ferry node`. Its name, type, default
and help are written in its field of `Settings`, and only there.
"""

import difflib
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from batching.process.part import EXIT_UNUSABLE
from batching.settings.loading import load_settings, why_without_effect
from batching.settings.settings import ENV_PREFIX, SETTINGS, Setting, Settings, SettingsError
from ferry.console import warn

Command = Callable[..., Any]

_MOST_USED, _OTHERS = "Most used", "Options"
# Options that are no settings, but used as often as the common ones.
_COMMON_OPTIONS = ("config", "port_base")


class UnusableSettings(click.ClickException):
    """No start with these settings can succeed, so a supervisor need not try again."""

    exit_code = EXIT_UNUSABLE


class ServerCommand(click.Command):
    """Lists a command's settings in sections of its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options: the most used ones first, options that are no settings last."""
        headings = {it.name: _MOST_USED if it.is_common else it.section for it in SETTINGS}
        headings |= dict.fromkeys(_COMMON_OPTIONS, _MOST_USED)
        order = [_MOST_USED, *(it.section for it in SETTINGS if it.section), _OTHERS]
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in order}
        for option in self.get_params(ctx):
            if (record := option.get_help_record(ctx)) is not None:
                sections[headings.get(option.name or "", _OTHERS)].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def settings_options(command: Command) -> Command:
    """Adds `--config` and one option per setting; the command gets a `settings` argument."""

    @functools.wraps(command)
    def with_settings(config: Path | None, **arguments: Any) -> Any:
        flags = {it.name: arguments.pop(it.name) for it in SETTINGS}
        flags["load_models"] = ",".join(flags["load_models"]) or None
        return command(settings=settings_from_flags(config, flags), **arguments)

    config_option = click.option(
        "--config",
        "--ts-config",
        envvar="TS_CONFIG_FILE",
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help="A config.properties file, TorchServe's keys included.",
    )
    options: list[Callable[[Command], Command]] = [config_option, *map(_option, SETTINGS)]
    decorated: Command = with_settings
    for option in reversed(options):  # click lists options in the reverse order
        decorated = option(decorated)
    return decorated


def settings_from_flags(
    config: Path | None, flags: dict[str, Any], defaults: Mapping[str, Any] | None = None
) -> Settings:
    """Returns the settings from file, environment and flags; warns of what has no effect."""
    try:
        settings, without_effect = load_settings(config, flags=flags, defaults=defaults)
    except SettingsError as error:
        raise UnusableSettings(str(error)) from error
    for key in without_effect:
        warn(f"{config}: {why_without_effect(key)}")
    known = {ENV_PREFIX + name.upper() for it in SETTINGS for name in (it.key, it.name)}
    for variable in sorted(os.environ.keys() - known):
        # Only names that are close to a setting's: clients and Kubernetes set other variables.
        alike = difflib.get_close_matches(variable, known, n=1, cutoff=0.85)
        if alike and variable.startswith(ENV_PREFIX):
            warn(f"{variable} is not a setting; did you mean {alike[0]}?")
    return settings


def _option(setting: Setting) -> Callable[[Command], Command]:
    name = setting.name.replace("_", "-")
    kind: dict[str, Any] = {"type": setting.kind}
    if setting.name == "load_models":
        kind = {"multiple": True, "metavar": "[NAME=]ARCHIVE"}
    elif setting.kind is Path:
        kind = {"type": click.Path(path_type=Path)}
    first, *others = setting.doc.split(" ")
    # A first word with other characters is a value, and values are written as they are.
    first = first.capitalize() if first.isalpha() and first.islower() else first
    default = "" if setting.default in ("", None) else f" [default: {setting.default}]"
    return click.option(
        *filter(None, (setting.flag,)),
        f"--{name}/--no-{name}" if setting.kind is bool else f"--{name}",
        setting.name,
        help=f"{' '.join([first, *others])}.{default}",
        default=None,
        **kind,
    )


def local_addresses(port: int) -> dict[str, Any]:
    """Returns the addresses of all listeners, of which predictions have this port."""
    names = ("inference_address", "management_address", "metrics_address")
    return {name: f"http://127.0.0.1:{port + number}" for number, name in enumerate(names)}


def _url_option(kind: str, port: int) -> Callable[[Command], Command]:
    return click.option(
        f"--{kind}-url",
        envvar=f"FERRY_{kind.upper()}_URL",
        default=f"http://127.0.0.1:{port}",
        show_default=True,
        show_envvar=True,
        help=f"Where the {kind} API listens. FERRY_TOKEN, if set, is the token for it.",
    )


inference_option = _url_option("inference", 8080)
management_option = _url_option("management", 8081)
version_option = click.option(
    "--version", default="", help="Version of the model. Default: its default version."
)


def _check_header_value(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise click.BadParameter(f"{value!r} has characters that no header may have")
    return value


content_type_option = click.option(
    "--content-type",
    default="",
    callback=_check_header_value,
    help="Content type of all files. Default: guessed from each file's name.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
