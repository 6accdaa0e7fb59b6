"""Snapshots: what is registered, into a file and back."""

import json
import os
from dataclasses import replace

import javaproperties
import pytest

from batching.models.entry import ModelEntry
from batching.settings.settings import Settings, SettingsError
from batching.settings.snapshots import newest_snapshot, read_snapshot, write_snapshot
from tests.support import make_spec

SPEC = make_spec(batch_size=8, min_worker=2, max_worker=3)


def registry_of(*specs):
    entry = ModelEntry(specs[0].model_version, {spec.model_version: spec for spec in specs})
    return {specs[0].model_name: entry}


def test_snapshot_brings_back_each_version_with_its_settings(tmp_path):
    # Given
    url = "https://torchserve.pytorch.org/mar_files/resnet.mar"
    second = replace(SPEC, model_version="2.0", model_url=url, handler="own.py:f")
    # When
    path = write_snapshot(tmp_path, Settings(), registry_of(SPEC, second))
    first, other = read_snapshot(path)
    # Then
    assert (first.model_name, first.model_version, first.is_default) == ("digits", "1.0", True)
    assert (first.min_worker, first.max_worker) == (2, 3)
    saved = {"url": "digits.mar", "model_name": "digits", "handler": "handler.py", "batch_size": 8}
    assert saved.items() <= first.parameters.items()
    assert (other.is_default, other.parameters["handler"]) == (False, "own.py:f")
    assert other.parameters["url"] == url


def test_snapshot_has_torchserves_form_and_takes_the_place_of_the_last_one(tmp_path):
    # When
    url = "https://torchserve.pytorch.org/mar_files/resnet.mar"
    models = registry_of(SPEC, replace(SPEC, model_version="2.0", model_url=url))
    settings = replace(Settings(), job_queue_size=5)
    write_snapshot(tmp_path, settings, {})
    path = write_snapshot(tmp_path, settings, models)
    # Then
    assert list(tmp_path.iterdir()) == [path]
    properties = javaproperties.loads(path.read_text())
    record = json.loads(properties["model_snapshot"])
    assert properties["job_queue_size"] == "5"
    assert (record["name"], record["modelCount"]) == (path.name, 2)
    names = {version: one["marName"] for version, one in record["models"]["digits"].items()}
    assert names == {"1.0": "digits.mar", "2.0": "resnet.mar"}


def test_snapshot_of_torchserve_itself_is_read(tmp_path):
    # Given the words of TorchServe 0.12, which saves neither handler nor URL
    path = tmp_path / "20240101120000123-shutdown.cfg"
    version = {"defaultVersion": True, "marName": "resnet.mar", "minWorkers": 1, "maxWorkers": 1}
    version |= {"batchSize": 4, "maxBatchDelay": 100, "responseTimeout": 120}
    record = {"name": path.name, "modelCount": 1, "models": {"resnet": {"1.0": version}}}
    path.write_text(javaproperties.dumps({"model_snapshot": json.dumps(record)}))
    # When
    [saved] = read_snapshot(path)
    # Then
    assert saved.parameters["url"] == "resnet.mar"
    assert saved.parameters["batch_size"] == 4
    assert "handler" not in saved.parameters


def of(address):
    return lambda properties: properties.get("management_address") == address


def test_newest_snapshot_is_the_last_written_of_the_same_server(tmp_path):
    # Given two servers that were started in one folder, where another one had run before
    mine, other = "http://127.0.0.1:8081", "unix:/run/x.sock"
    paths = [tmp_path / "20240101000000000-startup.cfg"]
    paths[0].write_text(f"management_address={mine}\nmodel_snapshot={{}}\n")
    for address in (mine, other):
        settings = replace(Settings(), management_address=address)
        paths.append(write_snapshot(tmp_path, settings, registry_of(SPEC)))
    for number, path in enumerate(paths):
        os.utime(path, (number, number))
    # When / Then
    assert newest_snapshot(tmp_path, of(mine)) == paths[1]
    assert newest_snapshot(tmp_path, of(other)) == newest_snapshot(tmp_path) == paths[2]
    assert newest_snapshot(tmp_path, of("http://127.0.0.1:1")) is None
    assert newest_snapshot(tmp_path / "missing") is None


@pytest.mark.parametrize("kept", ["nothing", "the settings", "half of the models", "no text"])
def test_snapshot_that_is_not_whole_is_named_and_another_one_counts(tmp_path, kept):
    # Given
    whole = write_snapshot(tmp_path, Settings(), registry_of(SPEC))
    os.utime(whole, (1, 1))
    content = whole.read_bytes()
    settings, models = content.split(b"model_snapshot", 1)
    broken = tmp_path / "20240101000000000-startup.cfg"
    half = content[: -len(models) // 2]
    texts = {"nothing": b"", "the settings": settings, "half of the models": half}
    broken.write_bytes(texts.get(kept, b"\\uXXXX"))
    said = []
    # When / Then
    assert newest_snapshot(tmp_path, report=said.append) == whole
    [line] = said
    assert line.startswith("snapshot passed over: ")
    assert str(broken) in line


@pytest.mark.parametrize(
    "text", ["[", "[1]", '{"models": {"m": 1}}', '{"models": {"m": {"1": {}}}}']
)
def test_snapshot_that_cannot_be_understood_is_named(tmp_path, text):
    path = tmp_path / "20240101000000000-startup.cfg"
    path.write_text(javaproperties.dumps({"model_snapshot": text}))
    with pytest.raises(SettingsError, match="its model_snapshot cannot be understood"):
        read_snapshot(path)
