"""What a node measures of its host, and what a worker's environment leaves out."""

import site
from pathlib import Path

import pytest

from batching.metrics import GAUGES
from batching.models.spec import ModelSpec
from batching.settings.loading import load_settings
from batching.settings.settings import Settings
from workers.machine import Device
from workers.node.host_meter import gpu_samples, measure
from workers.slots.assignment import Assignment
from workers.slots.worker_process import allowed_environment, worker_environment


def test_host_is_measured_under_torchserves_names():
    # When
    samples = {one.name: one.value for one in measure() if not one.device_id}
    # Then
    assert set(samples) == {
        "CPUUtilization",
        "DiskAvailable",
        "DiskUsage",
        "DiskUtilization",
        "MemoryAvailable",
        "MemoryUsed",
        "MemoryUtilization",
    }
    assert set(samples) <= set(GAUGES)
    for name in ("CPUUtilization", "DiskUtilization", "MemoryUtilization"):
        assert 0 <= samples[name] <= 100
    # Megabytes, not bytes
    assert 1 < samples["MemoryAvailable"] < 10**8


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "0, 1024, 4096, 37",
            {"GPUMemoryUsed": 1024, "GPUMemoryUtilization": 25, "GPUUtilization": 37},
        ),
        ("1, [N/A], [N/A], 5", {"GPUUtilization": 5}),
        ("2, 10, 0, [N/A]", {"GPUMemoryUsed": 10}),
        ("No devices were found", {}),
        ("0, 1, 2, 3, 4", {}),
    ],
)
def test_gpu_is_measured_as_far_as_it_tells(line, expected):
    samples = list(gpu_samples(line))
    assert {sample.name: sample.value for sample in samples} == expected
    assert {sample.device_id for sample in samples} <= {line[0]}


@pytest.fixture
def assignment():
    return Assignment(ModelSpec("m", "1.0", "m.mar", "m.py"), "w", Path("m"), Device("cpu"), 3, 4)


def test_worker_does_not_get_variables_that_are_named():
    # Given
    environment = {"AWS_SECRET": "s", "MY_AWS": "m", "PATH": "p"}
    # When / Then
    assert allowed_environment(environment, "") == environment
    assert set(allowed_environment(environment, "AWS_.*|PATH")) == {"MY_AWS"}


@pytest.mark.parametrize(
    ("name", "own", "default"),
    [
        ("OMP_NUM_THREADS", "7", "2"),
        ("MKL_NUM_THREADS", "7", "2"),
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST", "PCI_BUS_ID"),
    ],
)
def test_operator_has_the_last_word(name, own, default, assignment, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    assert worker_environment(assignment, Settings(), 2)[name] == default
    monkeypatch.setenv(name, own)
    assert worker_environment(assignment, Settings(), 2)[name] == own


def test_worker_finds_the_files_of_its_settings_from_the_models_folder(assignment):
    # Given files that are named from where the node was started
    settings = Settings(
        redis_url="rediss://localhost", redis_ca_file=Path("ca.pem"), metrics_config=Path("m.yaml")
    )
    # When
    told, _ = load_settings(None, worker_environment(assignment, settings, 1))
    # Then
    assert told.redis_ca_file == Path.cwd() / "ca.pem"
    assert told.metrics_config == Path.cwd() / "m.yaml"


def test_handlers_do_not_know_the_secrets_that_messages_are_signed_with(assignment, monkeypatch):
    secret = "whsec_" + "A" * 32
    monkeypatch.setenv("FERRY_WEBHOOK_SECRETS", secret)
    found = worker_environment(assignment, Settings(webhook_secrets=secret), 1)
    assert [name for name, value in found.items() if secret in value] == []
    assert load_settings(None, found)[0].webhook_secrets == ""


def test_packages_of_the_server_do_not_come_before_those_of_a_model(
    assignment, tmp_path, monkeypatch
):
    # Given an environment that is installed, and reached through a link
    installed = Path(__file__).parents[4]
    link = tmp_path / "current"
    link.symlink_to(installed)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(link)])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    # When / Then
    found = worker_environment(assignment, Settings(), 1)["PYTHONPATH"]
    assert found == str(installed / "compat")
