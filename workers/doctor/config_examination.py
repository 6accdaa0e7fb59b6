"""model-config.yaml: which keys count, which do not, and which are unknown."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from batching.models.config_keys import NOT_HERE, SERVER_TYPES, ignored_values, why_not_here
from workers.doctor.findings import Finding, note, ok, problem

PART = "model-config"

# Key -> the type that counts. First the server's keys, then those that handlers read.
COUNTS: Mapping[str, type] = {
    **SERVER_TYPES,
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
_NO_SEQUENCES = "there is no sequence batching"
# Key -> what happens instead.
WITHOUT_EFFECT: Mapping[str, str] = {
    "useVenv": "requirements.txt, if installed at all, always gets an environment of its own",
    "parallelLevel": "a worker is one process",
    "useJobTicket": "requests wait, up to job_queue_size",
    "sequenceMaxIdleMSec": _NO_SEQUENCES,
    "sequenceTimeoutMSec": _NO_SEQUENCES,
    "maxNumSequence": _NO_SEQUENCES,
    "maxSequenceJobQueueSize": _NO_SEQUENCES,
}


def examine_config(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields a finding for each key that will not do what it says."""
    found = [finding for key, value in config.items() if (finding := _examine_key(str(key), value))]
    found += [note(PART, text) for text in ignored_values(config, COUNTS)]
    yield from found
    if config and not found:
        yield ok(PART, "all keys are known")


def _examine_key(key: str, value: Any) -> Finding | None:
    if reason := why_not_here(key, value):
        return problem(PART, reason)
    if key in WITHOUT_EFFECT:
        return note(PART, f"{key} has no effect: {WITHOUT_EFFECT[key]}")
    if key in NOT_HERE or key in COUNTS:
        return None
    close = difflib.get_close_matches(key, [*COUNTS, *WITHOUT_EFFECT, *NOT_HERE], 1, cutoff=0.75)
    suggestion = f"; did you mean {close[0]}?" if close else ""
    return note(PART, f"{key} is unknown and only reaches the handler{suggestion}")
