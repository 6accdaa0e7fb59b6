"""Verdicts, tables and meters of `benchmarks.scaling` and `benchmarks.idle`, without servers."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict

import pytest

from benchmarks import idle, scaling
from benchmarks.comparison import is_reached
from benchmarks.processors import Meter, Usage, processor_s, resident_bytes, total_percent
from benchmarks.reports import at_least, at_most, to_record, verdict_lines

ALONE = {"fixed": 11.0, "adaptive": 1.0}
SIZES = {1: 4.0, 2: 4.0, 8: 3.9}
CLAIM = {"median": 0.4, "worst": 2.0}


def point(workers, requests_per_s, *, nodes=1, errors=0, busiest_percent=10.0, machine=20.0):
    return scaling.Point(
        nodes, workers, requests_per_s, errors, "ingress", busiest_percent, machine
    )


def judged(*points, alone=ALONE, sizes=SIZES, claim=CLAIM):
    return list(scaling.verdicts(alone, [point(1, 160.0), *points], sizes, claim))


def found(**changes):
    usage = {"node": Usage(0.3, 12.0), "ingress": Usage(0.02, 1.0)}
    values = {
        "usage": usage,
        "usage_with_more": usage,
        "ingress_bytes": 62_000_000,
        "before_more_bytes": 63_000_000,
        "after_more_bytes": 63_500_000,
    }
    return idle.Found(**(values | changes))


def test_bars_are_reached_when_all_is_well():
    # When
    verdicts = judged(point(8, 1250.0), point(8, 1240.0, nodes=4))

    # Then
    assert [verdict.is_reached for verdict in verdicts] == [True] * len(verdicts)
    assert len(verdicts) == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"alone": {"fixed": 11.6, "adaptive": 1.0}},
        {"alone": {"fixed": 11.0, "adaptive": 2.1}},
        {"sizes": {1: 4.0, 8: 3.7}},
        {"claim": {"median": 1.1, "worst": 2.0}},
    ],
    ids=["fixed", "adaptive", "smaller batches", "claim"],
)
def test_one_figure_beyond_its_bar_is_missed(changes):
    # When
    verdicts = judged(**changes)

    # Then
    assert [verdict.is_reached for verdict in verdicts].count(False) == 1


@pytest.mark.parametrize(
    ("measured", "is_reached"),
    [
        (point(8, 0.96 * 8 * 160), True),
        (point(8, 0.94 * 8 * 160), False),
        (point(8, 0.94 * 8 * 160, busiest_percent=97.0), None),
        (point(8, 0.94 * 8 * 160, machine=99.0), None),
        (point(8, 8 * 160, errors=1), False),
    ],
    ids=["enough", "too little", "a core is full", "the machine is full", "errors"],
)
def test_throughput_is_judged_by_what_was_left_of_the_machine(measured, is_reached):
    # When
    (verdict,) = [verdict for verdict in judged(measured) if "nodes 1, workers 8:" in verdict.text]

    # Then
    assert verdict.is_reached is is_reached


def test_scaling_table_has_a_row_per_layout():
    # Given
    points = [point(1, 160.0), point(8, 1216.0, nodes=4)]
    about = {
        "seconds": 6.0,
        "load_average": 0.1,
        "points": [asdict(one) for one in points],
        "batch_sizes": SIZES,
    }

    # When
    text = scaling.markdown(to_record("growth", about, judged(*points[1:])))

    # Then
    assert "| 1 | 1 | 160 | 100.0 % | ingress 10 % | 20 % |" in text
    assert "| 4 | 8 | 1216 | 95.0 % | ingress 10 % | 20 % |" in text
    assert "4.00 (1), 4.00 (2), 3.90 (8)" in text


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"usage": {"node": Usage(0.99, 12.0), "ingress": Usage(0.02, 1.0)}}, ["of a core"]),
        ({"ingress_bytes": 81_000_000}, ["resident"]),
        ({"after_more_bytes": 64_100_000}, ["of memory"]),
        ({"usage_with_more": {"ingress": Usage(0.02, 2.5)}}, ["more often"]),
    ],
    ids=["all", "processor", "memory", "models", "wake-ups"],
)
def test_idle_server_is_judged(changes, missed):
    # When
    verdicts = list(idle.verdicts(found(**changes)))

    # Then
    texts = [verdict.text for verdict in verdicts if not verdict.is_reached]
    assert len(texts) == len(missed)
    assert all(word in text for word, text in zip(missed, texts, strict=True))


def test_idle_table_has_a_row_per_role_and_a_sum():
    # Given
    about = {"seconds": 30.0, "load_average": 0.1, "found": asdict(found())}

    # When
    text = idle.markdown(to_record("idle", about, []))

    # Then
    assert "| node | 0.30 % | 12.0 | 0.30 % | 12.0 |" in text
    assert "| together | 0.32 % | 13.0 | 0.32 % | 13.0 |" in text


def test_bars_include_their_own_value():
    # When
    record = to_record(
        "x", {}, [at_most(1.0, 1.0, "a {}", "{:.0f} s"), at_least(1, 1, "b {}", "{}")]
    )

    # Then
    assert is_reached(record) is True
    assert verdict_lines(record) == ["reached: a 1 s (at most 1 s)", "reached: b 1 (at least 1)"]


def test_processor_time_counts_all_threads_to_the_microsecond():
    # Given
    def compute(seconds):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    before = processor_s(os.getpid())

    # When
    threads = [threading.Thread(target=compute, args=(0.003,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # Then: /proc would say 0.00 or 0.01
    assert 0.006 <= processor_s(os.getpid()) - before < 0.1


def test_processor_time_of_nobody_is_refused():
    # Given
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    # When / Then
    with pytest.raises(ProcessLookupError):
        processor_s(gone.pid)


def test_meter_tells_a_process_that_polls_from_one_that_waits():
    # Given
    poll = "import time\nprint(flush=True)\nwhile True: time.sleep(0.002)"
    wait = "import time\nprint(flush=True)\ntime.sleep(60)"
    running = {
        name: subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        for name, code in {"polls": poll, "waits": wait}.items()
    }
    try:
        for process in running.values():
            process.stdout.readline()

        # When
        meter = Meter({name: [process.pid] for name, process in running.items()})
        time.sleep(0.5)  # the time that is measured
        usage = meter.read()

        # Then
        assert usage["polls"].wakes_per_s > 20
        assert usage["waits"].wakes_per_s < 5
        assert usage["polls"].percent > 0
        assert total_percent(usage) >= usage["polls"].percent
        assert resident_bytes(running["waits"].pid) > 1_000_000
    finally:
        for process in running.values():
            process.kill()
            process.wait()
            process.stdout.close()
