"""What `ferry up` says of a server that has started."""

from dataclasses import replace

import pytest

from batching.models.entry import ModelEntry
from batching.settings.settings import Settings
from batching.settings.snapshots import CHANGE, write_snapshot
from ferry.process_tree.whole_server import models_words
from tests.support import make_spec

NONE = "none yet: `ferry models register`"
REMEMBERED = "those that Redis remembers"


@pytest.mark.parametrize(
    ("is_new", "is_saved", "load_models", "words"),
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
    tmp_path, is_new, is_saved, load_models, words
):
    # Given two versions of one model in the snapshot
    versions = {version: make_spec(model_version=version) for version in ("1.0", "2.0")}
    path = write_snapshot(tmp_path, CHANGE, {}, {"digits": ModelEntry("1.0", versions)})
    settings = replace(
        Settings(), load_models=load_models, snapshot_file=path if is_saved else None
    )
    # When / Then
    assert models_words(settings, is_new=is_new) == words


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
    assert models_words(settings, is_new=True) == NONE
