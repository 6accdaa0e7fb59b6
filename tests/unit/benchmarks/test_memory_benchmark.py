"""`python -m benchmarks.memory`: the models that it serves, and its table."""

import os
import zipfile

import pytest

from benchmarks.memory import WAYS, markdown, pss_bytes, write_model


def test_memory_of_a_process_is_what_the_kernel_says():
    assert 10_000_000 < pss_bytes(os.getpid()) < 100_000_000_000


@pytest.mark.parametrize("way", ["archive", "torchscript", "prepared"])
def test_model_is_archived_in_every_way(way, tmp_path):
    # When
    archive = write_model(tmp_path, "resnet50", way)

    # Then
    with zipfile.ZipFile(archive) as entries:
        config = entries.read("model-config.yaml").decode()
        names = entries.namelist()
    assert ("network.py" in names) is (way == "archive")
    assert (config == "prepare: True\n") is (way == "prepared")


def test_table_of_memory_has_every_way():
    # Given
    record = {
        "commit": "abc",
        "is_clean": True,
        "machine": {"cpus": 2, "processor": "P", "python": "3.11"},
        "network": "resnet50",
        "workers": 2,
        "weights_bytes": 100_000_000,
        "pss_bytes": {way: [5_000_000, 7_000_000] for way in WAYS},
    }

    # When
    text = markdown(record)

    # Then
    assert all(f"| {words} | 5, 7 | 12 |" in text for words in WAYS.values())
