"""What handlers measure, in Redis."""

import itertools

import pytest

from batching.metrics import Measurement, MetricKind, Series
from batching.store.registry.registry import read_metrics
from batching.store.scripts.loader import sha
from batching.store.worker_queue import MAX_FIELDS, RECORD_AT_ONCE, ReplyCode
from tests.support import KEY, items_of, make_reply


def series(name, kind=MetricKind.COUNTER, part="", **labels):
    return Series(name, kind, "ms", tuple(labels.items()), part)


@pytest.fixture
def client(harness):
    with harness.backend.connect() as connected:
        yield connected


@pytest.fixture
def measurements(harness):
    return harness.worker()


def test_counter_adds_up_and_gauge_is_set(client, measurements):
    # Given
    calls, took = series("calls", Level="Model"), series("took", MetricKind.GAUGE)

    # When
    measurements.record([Measurement(calls, 2), Measurement(took, 7.5)])
    measurements.record([Measurement(calls, 0.5), Measurement(took, 3)])

    # Then
    assert read_metrics(client, KEY) == {calls: 2.5, took: 3.0}


def test_series_beyond_the_limit_are_dropped_and_known_ones_go_on(client, measurements):
    # Given
    many = [Measurement(series("calls", user=str(number)), 1) for number in range(MAX_FIELDS)]
    assert measurements.record(many) == 0

    # When
    dropped = measurements.record([many[0], Measurement(series("calls", user="one too many"), 1)])

    # Then
    assert dropped == 1
    found = read_metrics(client, KEY)
    assert len(found) == MAX_FIELDS
    assert found[many[0].series] == 2


def test_nothing_is_recorded_for_a_version_that_is_not_registered(harness, client, measurements):
    # Given: the hash of a version that is gone would never be deleted
    harness.client.delete(harness.keys.config)

    # When
    measurements.record([Measurement(series("calls"), 1)])

    # Then
    assert read_metrics(client, KEY) == {}
    assert not harness.client.exists(harness.keys.metrics)


def test_metrics_are_buried_with_their_version(harness, measurements):
    # Given
    measurements.record([Measurement(series("calls"), 1)])

    # When
    harness.node().bury(KEY)

    # Then
    assert not harness.client.exists(harness.keys.metrics)


def test_b08_garbage_among_the_metrics_is_not_read(harness, client, measurements):
    # Given
    good = series("calls")
    measurements.record([Measurement(good, 1)])
    fields = ["x", "[]", "{}", '["a b","counter","",[],""]', '["a","counter","",[["b-c","d"]],""]']
    fields += [f'["h","histogram","u",[],"{part}"]' for part in ("abc", "inf", "nan", "", "-Inf")]
    fields += ['["a","counter","u",[],"sum"]', "[" * 100_000, b"\xff"]
    harness.client.hset(harness.keys.metrics, mapping=dict.fromkeys(fields, "1"))
    harness.client.hset(harness.keys.metrics, series("text").to_field(), "many")

    # When / Then
    assert read_metrics(client, KEY) == {good: 1}


def reply_measuring(harness, request_id, measured):
    """Has a worker answer a request that it measured so; returns what Redis carried out for it."""
    harness.submit(request_id)
    worker = harness.worker()
    items = items_of(worker.claim(1, 0.0))
    with harness.client.monitor() as monitor:
        assert worker.reply(items, [make_reply("A")], measured) == [ReplyCode.STORED]
        harness.client.echo("end")
        lines = itertools.takewhile(
            lambda line: "ECHO" not in line, (one["command"] for one in monitor.listen())
        )
        return list(lines)


def test_what_was_measured_is_recorded_before_the_reply_is_there(real_harness):
    # Given
    real_harness.client.script_flush()
    real_harness.worker().prepare_to_record()

    # When the script of the replies is not known, and when it is
    many = [Measurement(series("calls", user=str(n)), 1) for n in range(RECORD_AT_ONCE + 1)]
    for request_id in ("a", "b"):
        lines = reply_measuring(real_harness, request_id, many)

        # Then
        scripts = [line.split()[1] for line in lines if line.startswith("EVALSHA")]
        assert scripts[:2] == [sha("record")] * 2
        assert set(scripts[2:]) == {sha("reply")}
        assert scripts.count(sha("record")) == 2


def test_worker_replies_when_redis_does_not_know_the_scripts(real_harness):
    # Given
    real_harness.client.script_flush()

    # When
    reply_measuring(real_harness, "a", [Measurement(series("calls"), 1)])

    # Then
    assert read_metrics(real_harness.client, KEY) == {series("calls"): 1}
