"""model-config.yaml: which keys count, which do not, and which nobody knows."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from batching.models.config_types import SERVER_TYPES, ignored_values
from batching.models.left_out_keys import NOT_HERE, why_not_here
from workers.doctor.findings import Finding, note, ok, problem

PART = "model-config"

# Key -> the type that counts, of what handlers read.
HANDLER_TYPES: Mapping[str, type] = {
    "handler": dict,
    "micro_batching": dict,
    "pt2": object,
    "prepare": bool,
    "dtype": str,
    "jpeg_decoder": str,
    "dali": object,
    "deepspeed": object,
    "pippy": object,
}
COUNTS: Mapping[str, type] = {**SERVER_TYPES, **HANDLER_TYPES}
# Key -> what happens instead.
WITHOUT_EFFECT: Mapping[str, str] = {
    "useVenv": "requirements.txt, if installed at all, always gets an environment of its own",
    "parallelLevel": "a worker is one process",
    "sequenceMaxIdleMSec": "there is no sequence batching",
    "sequenceTimeoutMSec": "there is no sequence batching",
    "maxNumSequence": "there is no sequence batching",
    "maxSequenceJobQueueSize": "there is no sequence batching",
}
_BACKENDS_OF_TORCH = frozenset({"eager", "aot_eager", "inductor", "onnxrt", "openvino", "tensorrt"})


def examine_config(config: Mapping[str, Any]) -> Iterator[Finding]:
    """One finding for each key that deserves one."""
    found = [finding for key, value in config.items() for finding in _examine_key(str(key), value)]
    found += [note(PART, text) for text in ignored_values(config, COUNTS)]
    yield from found
    if config and not found:
        yield ok(PART, "all keys are known")


def _examine_key(key: str, value: Any) -> Iterator[Finding]:
    if reason := why_not_here(key, value):
        yield problem(PART, reason)
    elif key in WITHOUT_EFFECT:
        yield note(PART, f"{key} has no effect: {WITHOUT_EFFECT[key]}")
    elif key == "pt2":
        yield from _examine_compilation(value)
    elif key not in NOT_HERE and key not in COUNTS:
        yield note(PART, f"{key} is unknown and only reaches the handler{_suggestion(key)}")


def _suggestion(key: str) -> str:
    known = [*COUNTS, *WITHOUT_EFFECT, *NOT_HERE]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def _examine_compilation(value: Any) -> Iterator[Finding]:
    options = {"backend": value} if isinstance(value, str) else value
    if isinstance(options, dict):
        options = options.get("compile") or options
    backend = options.get("backend") if isinstance(options, dict) else None
    if backend is not None and backend not in _BACKENDS_OF_TORCH:
        yield note(PART, f"pt2: without a backend {backend} installed, the model runs eagerly")
