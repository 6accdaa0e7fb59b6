"""What a handler tells about jobs: the newest, soon, and at no cost to the handler."""

import threading

import pytest
from ts.context import Context

from batching.store.jobs.job_records import Progress
from batching.store.redis_errors import RedisError
from tests.support import eventually, make_outage
from tests.unit.workers.handling.batches import as_job, body, claimed
from workers.handling.handler_call import PROGRESS_PAUSE_S, JobReporter


def job(request_id):
    return as_job(claimed(request_id, body()))


class Call:
    """A handler that runs over these requests."""

    def __init__(self):
        self.context = Context("echo", "/", None, 8, None, "0.12.0")
        self.items = []

    def begin(self, *items):
        self.items = items
        ids = dict(enumerate(item.request_id for item in items))
        self.context.begin_batch(ids, list)


class Store:
    """Keeps what it is told, and holds or fails on command."""

    def __init__(self):
        self.told = []
        self.errors = []
        self.may_go = threading.Event()
        self.may_go.set()

    def write(self, news):
        assert self.may_go.wait(10)
        if self.errors:
            raise self.errors.pop()
        self.told += [(owned.request_id, Progress.of(value).share) for owned, value in news]


@pytest.fixture
def store():
    store = Store()
    yield store
    store.may_go.set()


@pytest.fixture
def call(store):
    call = Call()
    reporter = JobReporter(call, store.write, make_outage(), pause_s=0.001)
    call.context.keep_progress = reporter.note
    return call


def test_only_jobs_of_the_batch_are_told(store, call):
    # Given
    call.begin(job("a"), claimed("b", body()), job("c"))
    # When
    call.context.report_progress(0.1, index=1)
    call.context.report_progress(0.2, index=0)
    # Then
    eventually(lambda: store.told == [("a", 0.2)])


def test_the_last_of_a_burst_is_told_and_the_handler_does_not_wait(store, call):
    # Given a Redis that does not answer
    call.begin(job("a"))
    store.may_go.clear()
    # When
    for share in range(100):
        call.context.report_progress(share / 100)
    store.may_go.set()
    # Then
    eventually(lambda: store.told and store.told[-1] == ("a", 0.99))
    assert len(store.told) <= 2
    assert PROGRESS_PAUSE_S == 0.5


def test_progress_is_kept_while_redis_is_away(store, call, caplog):
    # Given
    store.errors = [RedisError("gone")] * 3
    call.begin(job("a"), job("b"))
    # When
    call.context.report_progress(0.3)
    call.context.report_progress(0.5, index=0)
    # Then
    eventually(lambda: {("a", 0.5), ("b", 0.3)} <= {*store.told})
    eventually(lambda: "Redis answers again" in caplog.text)
    assert caplog.text.count("does not answer") == 1


def test_nothing_is_told_after_the_batch_or_by_a_forked_process(store, call, monkeypatch):
    # Given
    call.begin(job("a"))
    # When
    monkeypatch.setattr("workers.handling.handler_call.os.getpid", lambda: 1)
    call.context.report_progress(0.5)
    monkeypatch.undo()
    call.items = ()
    call.context.report_progress(0.6)
    call.begin(job("b"))
    call.context.report_progress(0.1)
    # Then
    eventually(lambda: store.told)
    assert store.told == [("b", 0.1)]


@pytest.fixture
def context():
    context = Context("echo", "/", None, 8, None, "0.12.0")
    context.begin_batch({0: "a", 1: "b"}, list)
    context.kept = []
    context.keep_progress = lambda share, text, ids: context.kept.append((share, text, [*ids]))
    return context


def test_handler_reports_for_all_or_one_of_its_requests(context):
    context.report_progress(0.25, "page 1 of 4")
    context.report_progress(1.0000001, index=1)
    context.keep_progress = None  # outside of a worker it goes nowhere
    context.report_progress(0.1)
    assert context.kept == [
        (0.25, "page 1 of 4", ["a", "b"]),
        (1.0, "", ["b"]),
    ]
    assert Progress.of(Progress(0.0, "x" * 500).encode()).text == "x" * 200


@pytest.mark.parametrize("share", [-0.1, 1.1, 40, float("nan"), float("inf"), None, "much"])
def test_share_that_is_none_is_refused(context, share):
    with pytest.raises(ValueError, match="share from 0 to 1, not"):
        context.report_progress(share)


@pytest.mark.parametrize("index", [2, -1, "a"])
def test_request_that_is_not_in_the_batch_is_refused(context, index):
    with pytest.raises(IndexError, match="no request"):
        context.report_progress(0.1, index=index)
