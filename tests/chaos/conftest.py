"""One server in parts for the whole run; each test leaves it as it found it."""

from typing import Any

import pytest

from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.chaos import promises
from tests.chaos.crowd import Crowd
from tests.chaos.rig import Rig

WHOLE_RUN = 30  # promises; fewer are a part of the tests, and no result to be kept


@pytest.fixture(scope="session")
def chaos_redis():
    """Not `redis_server`, which the tests at a harness empty while the rig keeps its state here."""
    with EmbeddedRedis(find_server()) as server:
        yield server


@pytest.fixture(scope="session")
def whole_rig(chaos_redis, tmp_path_factory):
    rig = Rig(tmp_path_factory.mktemp("rig"), chaos_redis.url, server=chaos_redis)
    yield rig
    rig.close()


@pytest.fixture
def rig(whole_rig):
    """Redis, one ingress and one node."""
    yield whole_rig
    whole_rig.restore()
    whole_rig.unregister_all()


@pytest.fixture
def crowd(rig):
    """Clients of the rig."""
    with Crowd(rig.port) as crowd:
        yield crowd


@pytest.fixture
def record_promise(request):
    """Takes a promise's name and what was measured; the test's outcome is the verdict."""

    def record(name: str, measured: str) -> None:
        assert name in promises.PROMISES
        # Plain words, which pytest-xdist can hand from one process to another.
        request.node.user_properties.append(("promise", (name, measured)))

    return record


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Keeps the promises with their verdicts."""
    report = yield
    if report.when == "call":
        kept = item.config.stash.setdefault(promises.KEPT, {})
        found = [pair for name, pair in item.user_properties if name == "promise"]
        if report.failed and not found:
            found = [(item.name, "failed before it was measured")]
        kept.update(dict.fromkeys(found, report.passed))
    return report


def pytest_terminal_summary(config: pytest.Config) -> None:
    kept = config.stash.get(promises.KEPT, {})
    if kept and promises.is_long():
        promises.show(kept)
        if len(kept) >= WHOLE_RUN:
            promises.save(kept)
