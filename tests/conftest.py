"""Redis for every test of the store: one real server, a cluster; harnesses at it."""

import asyncio
import gc
import inspect
import signal
from time import monotonic  # itself: a test may step the clock

import hypothesis
import pytest

from batching.store.clients import connect, connect_async
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.e2e.ferry_process import FerryProcess, FerryServer
from tests.suites import is_fast, is_long, is_long_file
from tests.support import Backend, QueueHarness, server_backend
from tests.timing import has_bars
from tests.topology.servers import Cluster
from tests.topology.whole_suite import IS_ON_CLUSTER, ON_ONE_SERVER

# Times have bars where they are promised; its own would be 200 ms for each example of any test.
hypothesis.settings.register_profile("ferry", deadline=None)
hypothesis.settings.load_profile("ferry")

# As a job in the background, this run would have its servers ignore Ctrl-C, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers in parts that are killed, hosts whose links are cut, failovers, containers.
ALONE = {"compose", "network", "topology"}
BEGUN_S = pytest.StashKey[float]()


def pytest_ignore_collect(collection_path, config):
    """Leaves out whole files that would be deselected: what they import takes seconds."""
    if "not long" in config.option.markexpr and is_long_file(collection_path):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks tests that run alone, and long ones; on a cluster, skips tests of one server.

    Files with slow tests come first: of two workers, none ends long after the other.
    """
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)
    for item in items:
        is_under_fire = item.path.parent.name in ALONE or "rig" in item.fixturenames
        if is_under_fire or has_bars(item.function):
            item.add_marker(pytest.mark.alone)
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if is_long(item.path, parameters):
            item.add_marker(pytest.mark.long)
        elif is_fast(item.path, parameters, item.fixturenames):
            item.add_marker(pytest.mark.fast)
    if IS_ON_CLUSTER:
        for item in items:
            if any(words in item.nodeid for words in ON_ONE_SERVER):
                item.add_marker(pytest.mark.skip(reason="looks into one server"))


def pytest_collection_finish():
    """Keeps the collector from looking, again and again, through all that was imported."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs a test that is a coroutine function, on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.stash[BEGUN_S] = monotonic()  # just before its time-out begins to count
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that took all of its time, fixtures included, has failed; failures show servers' logs.

    Its time-out is raised wherever it is just then: in a task that is never awaited, it goes
    unseen.
    """
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, FerryServer):
                    report.sections += one.logs()
                elif isinstance(process := getattr(one, "process", one), FerryProcess):
                    report.sections.append(process.section())
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    took_s = monotonic() - item.stash[BEGUN_S]
    if report.passed and call.when != "teardown" and 0 < limit_s <= took_s:
        report.outcome, report.longrepr = "failed", f"took {took_s:.1f} s of {limit_s:g} s"
    return report


@pytest.fixture(scope="session")
def redis_server():
    """A server of this test run's own, on a unix socket in a temporary directory."""
    with EmbeddedRedis(find_server()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster():
    """Three masters that share the slots, and redis-py's own client for them."""
    with Cluster() as cluster, cluster.admin() as admin:
        yield cluster, admin


@pytest.fixture
def on_cluster(redis_cluster):
    """Empties the cluster; keys are looked at with redis-py's own client."""
    cluster, admin = redis_cluster
    cluster.flush()
    return Backend(
        client=admin,
        connect=lambda: connect(cluster.url),
        connect_async=lambda: connect_async(cluster.url),
        url=cluster.url,
    )


@pytest.fixture
def real_backend(request):
    """The real server, empty: for memory limits, time-outs and wake-ups."""
    if IS_ON_CLUSTER:
        yield request.getfixturevalue("on_cluster")
        return
    backend = server_backend(request.getfixturevalue("redis_server").url)
    yield backend
    backend.client.close()


@pytest.fixture(params=["cluster"] if IS_ON_CLUSTER else ["server", "cluster"])
def store_backend(request):
    """An empty Redis; each test runs on each kind."""
    if request.param == "cluster":
        return request.getfixturevalue("on_cluster")
    return request.getfixturevalue("real_backend")


@pytest.fixture
def harness(store_backend):
    """The queue of one version, registered and with a live worker, on each kind."""
    harness = QueueHarness(store_backend)
    harness.open()
    yield harness
    harness.close()


@pytest.fixture
def real_harness(real_backend):
    """The queue of one version, registered and with a live worker, on the real server."""
    harness = QueueHarness(real_backend)
    harness.open()
    yield harness
    harness.close()
