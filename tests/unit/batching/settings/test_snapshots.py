"""Snapshots: what is registered, into a file and back."""

import json
from dataclasses import replace

import javaproperties
import pytest

from batching.models.entry import ModelEntry
from batching.settings.settings import SettingsError
from batching.settings.snapshots import (
    CHANGE,
    STARTUP,
    newest_snapshot,
    read_snapshot,
    write_snapshot,
)
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
    path = write_snapshot(tmp_path, CHANGE, {}, registry_of(SPEC, second))
    first, other = read_snapshot(path)
    # Then
    assert (first.model_name, first.model_version, first.is_default) == ("digits", "1.0", True)
    assert (first.min_worker, first.max_worker) == (2, 3)
    saved = {"url": "digits.mar", "model_name": "digits", "handler": "handler.py", "batch_size": 8}
    assert saved.items() <= first.parameters.items()
    assert (other.is_default, other.parameters["handler"]) == (False, "own.py:f")
    assert other.parameters["url"] == url


def test_snapshot_has_torchserves_name_and_form(tmp_path):
    # When
    url = "https://torchserve.pytorch.org/mar_files/resnet.mar"
    models = registry_of(SPEC, replace(SPEC, model_version="2.0", model_url=url))
    path = write_snapshot(tmp_path, STARTUP, {"job_queue_size": "5"}, models)
    # Then
    assert path.name[:17].isdigit()
    assert path.name[17:] == "-startup.cfg"
    properties = javaproperties.loads(path.read_text())
    record = json.loads(properties["model_snapshot"])
    assert properties["job_queue_size"] == "5"
    assert (record["name"], record["modelCount"]) == (path.name, 2)
    names = {version: one["marName"] for version, one in record["models"]["digits"].items()}
    assert names == {"1.0": "digits.mar", "2.0": "resnet.mar"}


def test_snapshot_of_torchserve_itself_is_read(tmp_path):
    # Given the words of TorchServe 0.12, which saves neither handler nor URL
    path = tmp_path / "20240101120000123-shutdown.cfg"
    version = {
        "defaultVersion": True,
        "marName": "resnet.mar",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 4,
        "maxBatchDelay": 100,
        "responseTimeout": 120,
    }
    record = {"name": path.name, "modelCount": 1, "models": {"resnet": {"1.0": version}}}
    path.write_text(javaproperties.dumps({"model_snapshot": json.dumps(record)}))
    # When
    [saved] = read_snapshot(path)
    # Then
    assert saved.parameters["url"] == "resnet.mar"
    assert saved.parameters["batch_size"] == 4
    assert "handler" not in saved.parameters


def of(address):
    """Whether a snapshot is that of the server with this address."""
    return lambda properties: properties.get("management_address") == address


def write_named(folder, name, *, address=""):
    """A snapshot of this name, without models."""
    properties = {"management_address": address, "model_snapshot": "{}"}
    path = folder / name
    path.write_text(javaproperties.dumps(properties))
    return path


def test_newest_snapshot_is_the_youngest_by_name_whatever_its_kind(tmp_path):
    # Given
    for name in (
        "20240101000000000-startup.cfg",
        "20240101000000002-shutdown.cfg",
        "20240101000000001-snapshot.cfg",
        "99999999999999999-other.cfg",
        ".20990101000000000-startup.cfg",
    ):
        write_named(tmp_path, name)
    # When / Then
    assert newest_snapshot(tmp_path) == tmp_path / "20240101000000002-shutdown.cfg"
    assert newest_snapshot(tmp_path / "missing") is None


def test_newest_snapshot_is_that_of_the_same_server(tmp_path):
    # Given two servers that were started in one folder
    mine, other = "http://127.0.0.1:8081", "http://127.0.0.1:9081"
    for number, address in enumerate((mine, mine, other)):
        write_named(tmp_path, f"2024010100000000{number}-startup.cfg", address=address)
    # When / Then
    assert newest_snapshot(tmp_path, of(mine)).name == "20240101000000001-startup.cfg"
    assert newest_snapshot(tmp_path, of(other)).name == "20240101000000002-startup.cfg"
    assert newest_snapshot(tmp_path, of("http://127.0.0.1:1")) is None


@pytest.mark.parametrize("kept", ["nothing", "the settings", "half of the models", "no text"])
def test_snapshot_that_is_not_whole_is_named_and_the_one_before_it_counts(tmp_path, kept):
    # Given
    address = "http://127.0.0.1:8081"
    properties = {"management_address": address}
    whole = write_snapshot(tmp_path, STARTUP, properties, registry_of(SPEC))
    broken = write_snapshot(tmp_path, CHANGE, properties, registry_of(SPEC))
    content = broken.read_bytes()
    settings, models = content.split(b"model_snapshot", 1)
    broken.write_bytes(
        {
            "nothing": b"",
            "the settings": settings,
            "half of the models": content[: -len(models) // 2],
            "no text": b"\\uXXXX",
        }[kept]
    )
    said = []
    # When
    newest = newest_snapshot(tmp_path, of(address), report=said.append)
    # Then
    assert newest == whole
    [line] = said
    assert line.startswith("snapshot passed over: ")
    assert str(broken) in line
    assert "before it" not in line
    # And many take one line
    whole.unlink()
    for number in range(3):
        (tmp_path / f"2024010100000000{number}-startup.cfg").touch()
    assert newest_snapshot(tmp_path, of(address), report=said.append) is None
    assert said[1:] == [f"{line}; and 3 before it"]


def test_snapshot_is_the_newest_although_an_older_one_is_ahead_of_the_clock(tmp_path):
    # Given TorchServe's, which has local time in its name, or one that was written before the clock
    # was set back
    ahead = write_named(tmp_path, "29991231235959999-shutdown.cfg")
    # When
    written = [write_snapshot(tmp_path, CHANGE, {}, registry_of(SPEC)) for _ in range(2)]
    # Then
    assert sorted(tmp_path.iterdir()) == [ahead, *written]
    assert newest_snapshot(tmp_path) == written[-1]


def test_old_snapshots_go_when_there_are_too_many(tmp_path):
    # Given
    (tmp_path / "20200101000000000-startup.cfg").touch()
    (tmp_path / "20200101000000001-startup.cfg").touch()
    # When
    path = write_snapshot(tmp_path, CHANGE, {}, {}, max_files=2)
    # Then
    assert sorted(tmp_path.iterdir()) == [tmp_path / "20200101000000001-startup.cfg", path]


@pytest.mark.parametrize(
    "text", ["[", "[1]", '{"models": {"m": 1}}', '{"models": {"m": {"1": {}}}}']
)
def test_snapshot_that_cannot_be_understood_is_named(tmp_path, text):
    # Given
    path = tmp_path / "20240101000000000-startup.cfg"
    path.write_text(javaproperties.dumps({"model_snapshot": text}))
    # When / Then
    with pytest.raises(SettingsError, match="its model_snapshot cannot be understood"):
        read_snapshot(path)
