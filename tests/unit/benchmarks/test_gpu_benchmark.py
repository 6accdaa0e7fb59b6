"""`make bench-gpu`: what it says without a GPU, and what it makes of its measurements."""

import json

import pytest

from benchmarks import gpu, gpu_points
from benchmarks.gpu_points import Point, Served, per_batch
from benchmarks.gpu_record import GpuRecord
from benchmarks.gpu_report import best_points, markdown, to_point, verdict
from benchmarks.gpu_strict_handler import StrictClassifier
from benchmarks.load import LoadReport
from tests.unit.models import picture

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
    served = Served(report, {"workers": 3.0, "ingress": 0.5})
    return to_point(Point("resnet50", batch_size, workers, "cpu"), 1000.0, 250.0, served)


def record(*points):
    return {
        "commit": "abc",
        "is_clean": True,
        "machine": {"cpus": 16, "processor": "P", "python": "3.11"},
        "gpu": {"name": "GPU", "driver": "1.2"},
        "versions": {"torch": "2.15"},
        "load_average": 0.5,
        "setting": {"dtype": "float16", "ingresses": 2},
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
    points = [point(500), point(950, workers=4) | {"batch_ms": PARTS_MS}]

    # When
    text = markdown(record(*points))

    # Then
    assert "abc on 16 cores (P), Python 3.11; GPU, driver 1.2; torch 2.15, float16" in text
    assert "| resnet50 | 32 | 1 | cpu | 250.0 | 1000.0 | 500.0 | 50% | 20 | 0 |" in text
    assert "| resnet50 | 32 | 4 | cpu | 250.0 | 1000.0 | 950.0 | **95%** | 20 | 0 |" in text
    assert "| ingress | workers |" in text
    assert "| resnet50 | 32 | 4 | cpu | 0.5 | 3.0 |" in text
    assert text.count("| 32 | 2.0 | 30.0 | 1.0 | 16.0 | 0.5 | 0.2 |") == 1
    assert best_points(points) == [points[1]]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, 1),
        ({"commit": "def"}, 0),
        ({"is_clean": False}, 0),
        ({"gpu": {"name": "Another"}}, 0),
        ({"gpu": {"name": "GPU", "driver": "1.3"}}, 1),
    ],
    ids=["same", "other code", "changed code", "other GPU", "other driver"],
)
def test_record_is_on_disk_after_each_point_and_continued_by_the_next_command(
    change, kept, tmp_path
):
    # Given a command that was killed after its first point
    path, head = tmp_path / "gpu.json", record()
    GpuRecord(path, head).keep(point(500))

    # When
    continued = GpuRecord(path, head | change)

    # Then
    assert len(continued.content["points"]) == kept
    assert (continued.find(Point("resnet50", 32, 1, "cpu")) is not None) == kept
    continued.keep(point(900))
    continued.keep(point(800, workers=4))
    served = [one["served_per_s"] for one in json.loads(path.read_text())["points"]]
    assert served == [900, 800]


def test_figure_of_the_gpus_decoder_is_never_one_of_pillow():
    # Given a handler whose GPU leaves an image to Pillow
    handler = StrictClassifier()
    handler.model_yaml_config = {"jpeg_decoder": "gpu"}

    # When / Then
    assert handler._decoded([]) == []
    with pytest.raises(RuntimeError, match="1 images are left to Pillow"):
        handler._decoded([picture()])


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_gpu_benchmark_measures_a_small_network_on_the_cpu(tmp_path, monkeypatch):
    # Given
    monkeypatch.setattr(gpu, "SHORT_RESULTS", tmp_path / ".bench" / "results")
    monkeypatch.setattr(gpu_points, "CORES_PER_INGRESS", 1)
    monkeypatch.setattr(gpu_points, "MOST_INGRESSES", 2)
    words = ["--device", "cpu", "--models", "resnet18", "--batches", "2", "--seconds", "1"]

    # When
    assert gpu.main(words) == 0

    # Then
    found = json.loads((tmp_path / ".bench" / "results" / "gpu.json").read_text())
    (measured,) = found["points"]
    assert measured["errors"] == 0
    assert measured["served_per_s"] > 0
    assert measured["forward_per_s"] > 0
    assert measured["raw_per_s"] > 0
    assert measured["cores"]["workers"] > measured["cores"]["ingress"] > 0
    parts = measured["batch_ms"]
    assert parts["images"] > 1
    assert parts["forward"] > 0
    assert parts["decode"] > 0
