"""What TorchServe's config.properties does here: the server's own reading of it, told."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from batching.models.spec import PARAMETERS
from batching.settings.checks import doubts
from batching.settings.per_model import model_settings
from batching.settings.settings import Settings, SettingsError
from batching.settings.snapshots import read_snapshot
from batching.settings.sources import (
    ENABLE_ENVIRONMENT,
    SNAPSHOT,
    TS_NAMES,
    TS_NONE,
    TS_PREFIX,
    read_properties,
    switches_read_as_false,
)
from batching.settings.torchserve_keys import (
    BETTER,
    IGNORED,
    REPLACED,
    UNDERSTOOD,
    why_without_effect,
)
from ferry.moving.effects import Effect, Row, url_rows, version_rows
from ferry.moving.starts import Start, start_rows

_MODELS = "models"


def properties_rows(path: Path, starts: Sequence[Start]) -> Iterator[Row]:
    """Yields what becomes of each key of the file, of its models, and of each start as a whole.

    Raises:
        SettingsError: the file cannot be read.
    """
    properties = read_properties(path)
    for key in properties:
        yield key_row(key)
    for key, text in switches_read_as_false(properties, Settings.fields_by_key()).items():
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
        spec = Settings.fields_by_key().get(key)
        return Row(key, Effect.SAME, spec.metadata["doc"] if spec is not None else "")
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
        TS_NAMES.get(key, TS_PREFIX + key.upper()): key
        for key in (*Settings.fields_by_key(), *IGNORED)
        if key not in TS_NONE
    }
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
