"""`make bench-gpu`: what it says without a GPU, and what it makes of its measurements."""

import json

import pytest

from benchmarks import gpu
from benchmarks.gpu_points import Point, per_batch
from benchmarks.gpu_report import best_points, markdown, to_point, verdict
from benchmarks.load import LoadReport

PARTS_MS = {
    "between": 2.0,
    "decode": 30.0,
    "to_device": 1.0,
    "forward": 16.0,
    "from_device": 0.5,
    "rest": 0.25,
    "images": 32.0,
}


def point(served_per_s, *, workers=1, batch_size=32, errors=0):
    report = LoadReport(served_per_s, 10.0, 20.0, errors)
    return to_point(Point("resnet50", batch_size, workers, "cpu"), 1000.0, report, PARTS_MS)


def record(*points):
    return {
        "commit": "abc",
        "is_clean": True,
        "machine": {"cpus": 16, "processor": "P", "python": "3.11"},
        "gpu": {"name": "GPU", "driver": "1.2"},
        "versions": {"torch": "2.15"},
        "load_average": 0.5,
        "setting": {"dtype": "float16"},
        "bar": 0.9,
        "points": list(points),
    }


def test_gpu_benchmark_is_skipped_with_one_line_without_a_gpu(monkeypatch, capsys):
    # Given
    monkeypatch.setattr(gpu, "find_gpu", lambda: None)

    # When / Then
    assert gpu.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "skipped: there is no CUDA device here; --device cpu tries the command out"
    ]


def test_time_of_a_batch_adds_up_to_what_passed():
    # Given 10 batches of 32 images in 2 s, 1.5 s of them in the runner
    spent = {
        "ferry_batch_size_count": 10,
        "ferry_batch_size_sum": 320,
        "ferry_handler_seconds_sum": 1.5,
        "step_decode": 300.0,
        "step_to_device": 10.0,
        "step_forward": 1000.0,
        "step_from_device": 90.0,
    }

    # When
    parts = per_batch(spent, images_per_s=160.0)

    # Then
    assert parts == {
        "between": 50.0,
        "decode": 30.0,
        "to_device": 1.0,
        "forward": 100.0,
        "from_device": 9.0,
        "rest": 10.0,
        "images": 32.0,
    }


@pytest.mark.parametrize(
    ("points", "is_reached"),
    [
        ([point(500), point(900, workers=4)], True),
        ([point(500), point(899, workers=4)], False),
        ([point(900), point(899, batch_size=64)], False),
        ([point(900, errors=1)], False),
    ],
    ids=["best way", "no way", "one batch size only", "errors"],
)
def test_bar_is_for_the_best_way_to_serve_each_network_and_batch_size(points, is_reached):
    assert verdict(record(*points)) is is_reached


def test_tables_name_machine_gpu_and_every_point():
    # Given
    points = [point(500), point(950, workers=4)]

    # When
    text = markdown(record(*points))

    # Then
    assert "abc on 16 cores (P), Python 3.11; GPU, driver 1.2; torch 2.15, float16" in text
    assert "| resnet50 | 32 | 1 | cpu | 1000.0 | 500.0 | 50% | 20 | 0 |" in text
    assert "| resnet50 | 32 | 4 | cpu | 1000.0 | 950.0 | **95%** | 20 | 0 |" in text
    assert "| 32 | 2.0 | 30.0 | 1.0 | 16.0 | 0.5 | 0.2 |" in text
    assert best_points(points) == [points[1]]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_gpu_benchmark_measures_a_small_network_on_the_cpu(tmp_path, monkeypatch):
    # Given
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    words = ["--device", "cpu", "--models", "resnet18", "--batches", "2", "--seconds", "1"]

    # When
    assert gpu.main(words) == 0

    # Then
    found = json.loads((tmp_path / ".bench" / "results" / "gpu.json").read_text())
    (measured,) = found["points"]
    assert measured["errors"] == 0
    assert measured["served_per_s"] > 0
    assert measured["forward_per_s"] > 0
    parts = measured["batch_ms"]
    assert parts["images"] > 1
    assert parts["forward"] > 0
    assert parts["decode"] > 0
