"""What a Redis means for requests and jobs that are entrusted to it."""

from collections.abc import Iterator

from batching.settings.settings import Settings, SettingsError
from batching.store.server_check import SAFE_POLICY, ServerFacts, facts_of
from ferry.moving.effects import Effect, Row

_PAGE = 'docs/operations.md, "Jobs and persistence"'


def redis_rows(url: str) -> Iterator[Row]:
    """Yields the rows of the server that answers at this URL; of a cluster, of one of them.

    Raises:
        SettingsError: it does not answer, or does not tell.
    """
    try:
        facts = facts_of(Settings(redis_url=url))
    except OSError as error:
        raise SettingsError(f"this Redis does not answer: {error}") from error
    yield Row("version", Effect.NOTE if facts.is_too_old else Effect.SAME, _version(facts))
    yield _policy(facts)
    yield _persistence(facts)


def _version(facts: ServerFacts) -> str:
    return f"Redis {facts.version}{': use 7.0 or later' if facts.is_too_old else ''}"


def _policy(facts: ServerFacts) -> Row:
    if facts.policy == SAFE_POLICY:
        return Row("maxmemory-policy", Effect.SAME, f"{SAFE_POLICY}: nothing accepted is dropped")
    text = f"{facts.policy} may drop what was accepted: set it to {SAFE_POLICY}"
    return Row("maxmemory-policy", Effect.CHANGE, text)


def _persistence(facts: ServerFacts) -> Row:
    if not facts.is_writing_file:
        text = (
            'no append-only file: jobs end with this Redis, and say so ("durable": false). Where '
            f"they must not, set appendonly to yes; requests do not need it: {_PAGE}"
        )
        return Row("persistence", Effect.NOTE, text)
    if facts.has_write_failed:
        text = (
            "the append-only file could not be written, and Redis takes no writes: is a disk full?"
        )
        return Row("persistence", Effect.CHANGE, text)
    when = {
        "everysec": "a machine that fails loses the last second",
        "always": "a machine that fails loses nothing, and each write waits for the disk",
        "no": "a machine that fails loses what its system had not written: set it to everysec",
    }.get(facts.fsync, "what a machine that fails loses is for appendfsync to say")
    known = f", appendfsync {facts.fsync}" if facts.fsync else ""
    text = f"append-only file{known}: jobs and models survive Redis; {when}"
    return Row("persistence", Effect.NOTE if facts.fsync == "no" else Effect.SAME, text)
