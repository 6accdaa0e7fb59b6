"""One server in parts for the whole run; each test leaves it as it found it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.chaos import promises
from tests.chaos.crowd import Crowd
from tests.chaos.promises import Promise
from tests.chaos.rig import Rig

WHOLE_RUN = 30  # promises; fewer are a part of the tests, and no result to be kept


@pytest.fixture(scope="session")
def chaos_redis() -> Iterator[EmbeddedRedis]:
    """Not `redis_server`, which the tests at a harness empty while the rig keeps its state here."""
    with EmbeddedRedis(find_server()) as server:
        yield server


@pytest.fixture(scope="session")
def whole_rig(
    chaos_redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("rig"), chaos_redis.url, server=chaos_redis)
    yield rig
    rig.close()


@pytest.fixture
def rig(whole_rig: Rig) -> Iterator[Rig]:
    """Redis, one ingress and one node."""
    yield whole_rig
    whole_rig.restore()
    whole_rig.unregister_all()


@pytest.fixture
def crowd(rig: Rig) -> Iterator[Crowd]:
    """Clients of the rig."""
    with Crowd(rig.port) as crowd:
        yield crowd


@pytest.fixture
def record_promise(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Takes a key of PROMISES and what was measured; the test's outcome is the verdict."""

    def record(key: str, measured: str) -> None:
        # Plain words, which pytest-xdist can hand from one process to another.
        words = (key.split(maxsplit=1)[0], *promises.PROMISES[key], measured)
        request.node.user_properties.append(("promise", words))

    return record


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Keeps the promises with their verdicts; a failure shows the ends of the servers' logs."""
    report = yield
    if report.when == "call":
        kept = item.config.stash.setdefault(promises.KEPT, {})
        found = [Promise(*words) for name, words in item.user_properties if name == "promise"]
        if report.failed and not found:
            found = [Promise(_row(item.name), item.name, "", "failed before it was measured")]
        kept.update(dict.fromkeys(found, report.passed))
    if report.failed:
        for rig in {value for value in item.funcargs.values() if isinstance(value, Rig)}:
            report.sections += rig.logs()
    return report


def pytest_terminal_summary(config: pytest.Config) -> None:
    kept = config.stash.get(promises.KEPT, {})
    if not kept or not promises.is_long():
        return
    promises.show(kept)
    if len(kept) >= WHOLE_RUN:
        promises.save(kept)


def _row(name: str) -> str:
    word = name.removeprefix("test_").partition("_")[0]
    return word.upper().replace("F0", "F")
