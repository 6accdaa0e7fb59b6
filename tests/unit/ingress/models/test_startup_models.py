import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from batching.settings.settings import Settings
from ingress.models.startup_models import startup_parameters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a.mar", [(None, "a.mar")]),
        ("a.mar, b.mar", [(None, "a.mar"), (None, "b.mar")]),
        ("mine=a.mar", [("mine", "a.mar")]),
        ("https://x.example/a.mar?v=1", [(None, "https://x.example/a.mar?v=1")]),
        ("m=https://x.example/a.mar?v=1", [("m", "https://x.example/a.mar?v=1")]),
    ],
)
def test_load_models_names_archives(text, expected):
    found = startup_parameters(replace(Settings(), load_models=text))
    assert [(entry.get("model_name"), entry["url"]) for entry in found] == expected


def test_load_models_all_takes_archives_and_folders_but_nothing_hidden(tmp_path):
    # Given
    for name in ("b.mar", "a.model", "c.tar.gz", "notes.txt", ".hidden.mar"):
        (tmp_path / name).touch()
    for manifest in (".git/MAR-INF", "folder/MAR-INF", "wrapped/inner/MAR-INF"):
        (tmp_path / manifest).mkdir(parents=True)
        (tmp_path / manifest / "MANIFEST.json").touch()
    # and a volume of Kubernetes, other links, and one whose disk is away
    (tmp_path / "..2026_11_25").mkdir()
    (tmp_path / "..2026_11_25" / "d.mar").touch()
    (tmp_path / "..data").symlink_to("..2026_11_25")
    (tmp_path / "d.mar").symlink_to("..data/d.mar")
    (tmp_path / "linked").symlink_to("folder")
    (tmp_path / "more-notes").symlink_to("notes.txt")
    (tmp_path / "away").symlink_to("no-disk")
    # When
    found = startup_parameters(replace(Settings(), load_models="ALL", model_store=tmp_path))
    # Then
    names = ["a.model", "away", "b.mar", "c.tar.gz", "d.mar", "folder", "linked", "wrapped"]
    assert [entry["url"] for entry in found] == names


def test_load_models_all_leaves_out_folders_that_are_no_models(tmp_path, caplog):
    # Given
    caplog.set_level("INFO")
    (tmp_path / "logs" / "config").mkdir(parents=True)
    settings = replace(Settings(), load_models="all", model_store=tmp_path)
    # When / Then
    assert startup_parameters(settings) == []
    assert f"left out folder={tmp_path / 'logs'}: it has no MAR-INF/MANIFEST.json" in caplog.text
    # When all that name no handler have one
    found = startup_parameters(replace(settings, default_service_handler="own.py"))
    # Then
    assert [entry["url"] for entry in found] == ["logs"]


def test_load_models_all_says_that_the_store_cannot_be_read(tmp_path, monkeypatch, caplog):
    # Given a folder of which this user may not have a list
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    # When
    found = startup_parameters(replace(Settings(), load_models="all", model_store=tmp_path))
    # Then
    assert found == []
    assert f"cannot read the model_store: [Errno 13] Permission denied: '{tmp_path}" in caplog.text


@pytest.mark.parametrize(("configured", "workers"), [(0, 1), (3, 3)])
def test_startup_models_get_workers(configured, workers):
    settings = replace(Settings(), load_models="a.mar", default_workers_per_model=configured)
    assert [entry["initial_workers"] for entry in startup_parameters(settings)] == [workers]
