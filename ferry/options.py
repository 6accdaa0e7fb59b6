"""Command-line options that several commands share.

Every field of `Settings` is an option of `ferry up`, `ferry ingress` and `ferry node`. Its name,
type, default and help are written in the field, and only there.
"""

import dataclasses
import difflib
import functools
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from batching.process.entry_point import EXIT_UNUSABLE
from batching.settings.checks import doubts
from batching.settings.loading import load_settings
from batching.settings.settings import ENV_PREFIX, Settings, SettingsError
from batching.settings.sources import read_properties, switches_read_as_false
from batching.settings.torchserve_keys import why_without_effect
from ferry.console import warn
from ferry.role_settings import MOST_USED, SECTIONS

Command = Callable[..., Any]

# The spelling that torchserve users know; the field's own name works as well.
_ALIASES = {
    "load_models": ("--models",),
    "disable_token_authorization": ("--disable-token-auth",),
}


_MOST_USED = "Most used"
_OTHERS = "Options"


class UnusableSettings(click.ClickException):
    """No start with these settings can succeed, so a supervisor need not try again."""

    exit_code = EXIT_UNUSABLE


class NumberRange(click.FloatRange):
    """A range of numbers, which NaN and infinity are outside of."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number; fails with one line that says what is wrong."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


def option_group(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns a decorator that gives a command these options, listed in this order."""

    def give(command: Command) -> Command:
        for option in reversed(options):  # click lists the last one that was applied first
            command = option(command)
        return command

    return give


class ServerCommand(click.Command):
    """A command with all settings, which its help lists in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options: first those most used, last those that are no settings."""
        sections: dict[str, list[tuple[str, str]]] = {_MOST_USED: []}
        section = _MOST_USED
        for one in self.get_params(ctx):
            name = one.name or ""
            section = SECTIONS.get(name, section) if name in Settings.fields() else _OTHERS
            if (record := one.get_help_record(ctx)) is not None:
                heading = _MOST_USED if name in MOST_USED else section
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def require_store(settings: Settings) -> None:
    """Checks that the model store is a folder: else each archive would be "not found".

    Raises:
        ClickException: it is not a folder.
    """
    if settings.model_store is not None and not settings.model_store.is_dir():
        raise click.ClickException(f"the model store is not a folder: {settings.model_store}")


def settings_options(command: Command, *, unlisted: Collection[str] = ()) -> Command:
    """Adds `--config` and one option per setting; the command gets a `settings` argument.

    The help does not list the settings in `unlisted`.
    """

    @functools.wraps(command)
    def with_settings(config: Path | None, **arguments: Any) -> Any:
        names = {spec.name for spec in dataclasses.fields(Settings)}
        flags = {name: arguments.pop(name) for name in names}
        flags["load_models"] = ",".join(flags["load_models"]) or None
        return command(settings=settings_from_flags(config, flags), **arguments)

    decorated: Command = with_settings
    for spec in reversed(dataclasses.fields(Settings)):
        decorated = _option(spec, is_listed=spec.name not in unlisted)(decorated)
    return click.option(
        "--config",
        "--ts-config",
        envvar="TS_CONFIG_FILE",
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help="A config.properties file, TorchServe's keys included.",
    )(decorated)


def settings_from_flags(
    config: Path | None, flags: dict[str, Any], defaults: Mapping[str, Any] | None = None
) -> Settings:
    """Returns the settings from file, environment and flags; warns of keys without effect.

    Raises:
        ClickException: the file cannot be read, or a value has the wrong type.
    """
    try:
        settings, without_effect = load_settings(config, flags=flags, defaults=defaults)
    except SettingsError as error:
        raise UnusableSettings(str(error)) from error
    for key in without_effect:
        warn(f"{config}: {why_without_effect(key)}")
    if config is not None:
        odd = switches_read_as_false(read_properties(config), Settings.fields_by_key())
        for key, text in odd.items():
            warn(f"{config}: {key}={text} counts as false, as in TorchServe; did you mean true?")
    for doubt in (*doubts(settings), *_misspelt_variables()):
        warn(doubt)
    return settings


def _misspelt_variables() -> Iterator[str]:
    fields = (*Settings.fields_by_key(), *(spec.name for spec in dataclasses.fields(Settings)))
    known = {ENV_PREFIX + name.upper() for name in fields}
    for variable in sorted(os.environ.keys() - known):
        # Only names that are close to a setting's: clients and Kubernetes set other variables.
        alike = difflib.get_close_matches(variable, known, n=1, cutoff=0.85)
        if alike and variable.startswith(ENV_PREFIX):
            yield f"{variable} is no setting; did you mean {alike[0]}?"


def _option(spec: "dataclasses.Field[Any]", *, is_listed: bool) -> Callable[[Command], Command]:
    name = f"--{spec.name.replace('_', '-')}"
    names = (*_ALIASES.get(spec.name, ()), name, spec.name)
    default = "" if spec.default in ("", None) else f" [default: {spec.default}]"
    option = functools.partial(
        click.option, help=f"{_sentence(spec.metadata['doc'])}{default}", hidden=not is_listed
    )
    if spec.type is bool:
        names = (*_ALIASES.get(spec.name, ()), f"{name}/--no-{name[2:]}", spec.name)
        return option(*names, default=None)
    if spec.name == "load_models":
        return option(*names, multiple=True, metavar="[NAME=]ARCHIVE")
    return option(*names, type=_click_type(spec.type), default=None)


def _sentence(doc: str) -> str:
    first, *others = doc.split(" ")
    # A first word with other characters is a value, and values are written as they are.
    first = first.capitalize() if first.isalpha() and first.islower() else first
    return f"{' '.join([first, *others])}."


def _click_type(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    return click.Path(path_type=Path) if kind is Path else kind


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


def check_header_value(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Refuses text that a header must not have.

    Raises:
        BadParameter: the text has such characters.
    """
    if not (value.isascii() and value.isprintable()):
        raise click.BadParameter(f"{value!r} has characters that no header may have")
    return value


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
