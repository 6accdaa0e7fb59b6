"""Rows that say what stays, what gets better and what must change."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from batching.errors import ServeError
from batching.models.config_keys import why_not_here
from batching.models.registration import ModelDefaults, spec_from_registration
from batching.models.spec import PARAMETERS, ArchiveInfo
from workers.doctor.config_examination import WITHOUT_EFFECT

# In descriptions, TorchServe has another name for what model-config.yaml calls so.
_DESCRIBED_AS = {"stateful": "sequenceBatching"}


class Effect(StrEnum):
    """Says what becomes of a part. A note should be read."""

    SAME = "same"
    BETTER = "better"
    NOTE = "note"
    CHANGE = "must change"


@dataclass(frozen=True, slots=True)
class Row:
    """One part, and one sentence about it; of what must change, the sentence says how."""

    part: str
    effect: Effect
    text: str


def version_rows(
    model_name: str, version: str, settings: Mapping[str, Any], url: str
) -> Iterator[Row]:
    """Yields the rows of a registered version.

    Args:
        model_name: its model.
        version: its version.
        settings: in the words of TorchServe's descriptions and of `models` in config.properties.
        url: of its archive.
    """
    part = f"model {model_name} {version}"
    for word, value in settings.items():
        key = _DESCRIBED_AS.get(word, word)
        if reason := why_not_here(key, value):
            yield Row(part, Effect.CHANGE, reason)
        elif key in WITHOUT_EFFECT and value:
            yield Row(part, Effect.NOTE, f"{key} has no effect: {WITHOUT_EFFECT[key]}")
    runtime = {"runtime": str(settings["runtime"])} if settings.get("runtime") else {}
    archive = ArchiveInfo(url, "", model_name, version, "", "python", None, settings)
    try:
        spec = spec_from_registration(runtime, archive, ModelDefaults())
    except ServeError as error:
        yield Row(part, Effect.CHANGE, error.message)
        return
    named = [one for one in PARAMETERS if settings.get(one.word) not in (None, "", ())]
    words = ", ".join(f"{one.word} {settings[one.word]}" for one in named)
    yield Row(part, Effect.SAME, words or "the defaults")
    if spec.batch_size > 1:
        yield Row(
            part,
            Effect.BETTER,
            "maxBatchDelay counts from the oldest request's arrival; "
            "when a batch fails, each of its requests is tried alone",
        )
    if spec.min_worker:
        yield Row(
            part, Effect.BETTER, "minWorkers are those of each node: more nodes, more workers"
        )


def url_rows(part: str, url: str, allowed_urls: str) -> Iterator[Row]:
    """Yields a row for an archive that comes from another machine.

    Args:
        part: the row's.
        url: of the archive; it may be a file's name.
        allowed_urls: the setting.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        return
    name = url.partition("?")[0]  # a query may be a secret
    if any(re.fullmatch(one.strip(), url) for one in allowed_urls.split(",")):
        yield Row(part, Effect.SAME, f"{name} is in allowed_urls")
    else:
        text = f"{name} is not in allowed_urls: name it there, or copy it into the model store"
        yield Row(part, Effect.CHANGE, text)
