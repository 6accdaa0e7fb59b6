"""What `ferry up` says of a server that has started."""

from dataclasses import replace

import pytest

from batching.models.entry import ModelEntry
from batching.settings.settings import Settings
from batching.settings.snapshots import write_snapshot
from ferry.process_tree.whole_server import models_at_start
from tests.support import make_spec

NONE = "none yet: start with --model-store FOLDER, for the archives in it"
REMEMBERED = "those that Redis remembers"


@pytest.mark.parametrize(
    ("is_embedded", "is_saved", "load_models", "words"),
    [
        (True, False, "", NONE),
        (True, False, "a.mar", "a.mar"),
        (True, True, "", "digits"),
        (True, True, "a.mar", "digits, a.mar"),
        (False, False, "", REMEMBERED),
        (False, True, "a.mar", f"{REMEMBERED}, a.mar"),
    ],
)
def test_models_are_those_that_the_server_begins_with(
    tmp_path, is_embedded, is_saved, load_models, words
):
    # Given two versions of one model in the snapshot
    versions = {version: make_spec(model_version=version) for version in ("1.0", "2.0")}
    path = write_snapshot(tmp_path, Settings(), {"digits": ModelEntry("1.0", versions)})
    settings = replace(
        Settings(), load_models=load_models, snapshot_file=path if is_saved else None
    )
    # When / Then
    assert models_at_start(settings, is_embedded=is_embedded) == words


@pytest.mark.parametrize(
    ("files", "changes", "words"),
    [
        ([], {}, "`ferry models register ARCHIVE.mar`"),
        (["b.mar", "a.txt", "a b.mar"], {}, "`ferry models register 'a b.mar'`"),
        (
            ["a.mar"],
            {"management_address": "http://127.0.0.1:9001"},
            "`ferry models register a.mar --management-url http://127.0.0.1:9001`",
        ),
    ],
)
def test_first_step_is_a_command_that_works(tmp_path, files, changes, words):
    # Given
    for name in files:
        (tmp_path / name).touch()
    settings = replace(Settings(), model_store=tmp_path, **changes)
    # When / Then
    assert models_at_start(settings, is_embedded=True) == f"none yet: {words}"


def test_address_of_metrics_that_are_switched_off_is_neither_needed_nor_named():
    # Given
    settings = Settings()
    # When / Then
    assert list(settings.addresses()) == ["inference", "management", "metrics"]
    switched_off = replace(settings, enable_metrics_api=False).addresses()
    assert switched_off == {
        "inference": settings.inference_address,
        "management": settings.management_address,
    }


def test_snapshot_that_cannot_be_read_is_no_model(tmp_path):
    settings = replace(Settings(), snapshot_file=tmp_path / "missing.cfg")
    assert models_at_start(settings, is_embedded=True) == NONE
