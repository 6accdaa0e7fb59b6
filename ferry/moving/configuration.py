"""What TorchServe's config.properties does here: the server's own reading of it, told."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from batching.models.spec import PARAMETERS
from batching.settings.files import read_properties
from batching.settings.loading import doubts, switches_read_as_false
from batching.settings.settings import BY_KEY, SETTINGS, SettingsError
from batching.settings.snapshots import read_snapshot
from batching.settings.torchserve_keys import (
    BETTER,
    ENABLE_ENVIRONMENT,
    IGNORED,
    REPLACED,
    SNAPSHOT,
    UNDERSTOOD,
    WITHOUT_VARIABLE,
    why_without_effect,
)
from batching.settings.values import model_settings
from ferry.moving.effects import Effect, Row, url_rows, version_rows
from ferry.moving.starts import Start, start_rows

_MODELS = "models"
TS_PREFIX = "TS_"


def properties_rows(path: Path, starts: Sequence[Start]) -> Iterator[Row]:
    """Yields what becomes of each key of the file, of its models, and of each start as a whole.

    Raises:
        SettingsError: the file cannot be read.
    """
    properties = read_properties(path)
    for key in properties:
        yield key_row(key)
    for key, text in switches_read_as_false(properties).items():
        yield Row(key, Effect.NOTE, f"{text} counts as false, as in TorchServe; did you mean true?")
    if "default_workers_per_model" not in properties:
        yield Row(
            "default_workers_per_model",
            Effect.NOTE,
            "not set: TorchServe starts a worker "
            "per GPU or core for a model of load_models, this server one",
        )
    yield from _model_rows(path, properties)
    with contextlib.suppress(SettingsError):  # which the rows of the start have
        settings = starts[0].settings(path)
        yield from (Row("", Effect.NOTE, doubt) for doubt in doubts(settings))
        for archive in settings.load_models.split(","):
            url = re.sub(r"^[\w.-]+=", "", archive.strip())
            yield from url_rows("load_models", url, settings.allowed_urls)
    yield from start_rows(path, starts)


def key_row(key: str) -> Row:
    """Returns what becomes of one key of config.properties."""
    if key in BETTER:
        return Row(key, Effect.BETTER, BETTER[key].replace("`", ""))
    if key in UNDERSTOOD:
        return Row(key, Effect.SAME, BY_KEY[key].doc if key in BY_KEY else "")
    if key in REPLACED:
        return Row(key, Effect.CHANGE, IGNORED[key])
    return Row(key, Effect.NOTE, why_without_effect(key))


def variable_row(variable: str, *, is_enabled: bool) -> Row:
    """Returns what becomes of a variable `TS_...`.

    Args:
        variable: its name.
        is_enabled: the server's file says `enable_envvars_config=true`.
    """
    by_variable = {
        TS_PREFIX + key.upper(): key for key in IGNORED if key not in WITHOUT_VARIABLE
    } | {it.ts_variable: it.key for it in SETTINGS if it.ts_variable}
    if variable not in by_variable:
        return Row(variable, Effect.NOTE, "is no variable of TorchServe's, and has no effect")
    row = key_row(by_variable[variable])
    if not is_enabled:
        text = f"counts only if the file says {ENABLE_ENVIRONMENT}=true, as in TorchServe"
        return Row(variable, Effect.NOTE, text)
    return Row(variable, row.effect, row.text)


def _model_rows(path: Path, properties: Mapping[str, str]) -> Iterator[Row]:
    with contextlib.suppress(SettingsError):  # as above
        for name, versions in model_settings(properties.get(_MODELS, "")).items():
            for version, words in versions.items():
                yield from version_rows(name, version, words, str(words.get("marName", "")))
    if SNAPSHOT in properties:
        yield from _saved_rows(path)


def _saved_rows(path: Path) -> Iterator[Row]:
    try:
        versions = read_snapshot(path)
    except SettingsError as error:
        # The server starts all the same, without these models.
        yield Row(SNAPSHOT, Effect.CHANGE, str(error))
        return
    for saved in versions:
        given = saved.parameters
        words = {one.word: given[one.rest] for one in PARAMETERS if one.rest in given}
        words |= {"minWorkers": saved.min_worker, "maxWorkers": saved.max_worker}
        yield from version_rows(saved.model_name, saved.model_version, words, str(given["url"]))
