"""Where archives are looked for, and where not."""

import errno
import os
from pathlib import Path

import pytest

from batching.errors import DownloadFailed, InternalError, ModelNotFound
from tests.unit.workers.archives.web import archive_bytes, locate


@pytest.fixture
def store(store, tmp_path):
    (store / "local.mar").write_bytes(archive_bytes())
    (store / "model").mkdir()
    (store / "model" / "echo.py").touch()
    (tmp_path / "secret.mar").write_bytes(archive_bytes())
    (store / "loop.mar").symlink_to("loop.mar")
    (store / "away.mar").symlink_to(tmp_path / "no-disk" / "away.mar")
    return store


@pytest.fixture
def links(store, tmp_path):
    """What an operator links to: a shared disk, a file of the store, and a mount of Kubernetes."""
    disk = tmp_path / "disk"
    (disk / "model").mkdir(parents=True)
    (disk / "blob").write_bytes(archive_bytes())  # as in a store by content
    (store / "link.mar").symlink_to(disk / "blob")
    (store / "folder").symlink_to(disk / "model")
    (store / "disk").symlink_to(disk)
    (store / "within.mar").symlink_to("local.mar")
    (store / "..2026_11").mkdir()
    (store / "..2026_11" / "mounted.mar").write_bytes(archive_bytes())
    (store / "..data").symlink_to("..2026_11")
    (store / "mounted.mar").symlink_to("..data/mounted.mar")


@pytest.mark.parametrize("path", ["/home/me/model_store/local.mar", "model_store/local.mar"])
def test_archive_is_found_by_its_name_where_the_store_has_another_path(path, store):
    # When / Then
    assert locate(path, store) == store / "local.mar"


def test_folder_of_that_name_in_the_store_is_another_model(store):
    # When / Then
    with pytest.raises(ModelNotFound, match="Model not found at: /opt/model"):
        locate("/opt/model", store)


def test_folder_that_the_operator_names_may_be_outside_of_the_store(store, tmp_path):
    # Given
    folder = tmp_path / "own"
    folder.mkdir()
    # When / Then
    assert locate(str(folder), store, load_models=f"a.mar, own={folder}") == folder
    assert locate(str(folder), store, load_models=str(folder)) == folder
    for load_models in ("", "all", f"own={folder}er"):
        with pytest.raises(ModelNotFound, match="Model not found at: "):
            locate(str(folder), store, load_models=load_models)


def test_operators_hear_where_an_archive_was_looked_for(store):
    # When
    with pytest.raises(ModelNotFound) as raised:
        locate("locla.mar", store)
    # Then
    assert raised.value.message == "Model not found at: locla.mar"
    assert raised.value.operators_text == f"Did you mean local.mar? It was looked for in {store}"


NOT_BEHIND_THE_LINK = ": a link is there, but not the file or folder that it leads to"
REFUSED = {
    "": "empty url",
    **{
        url: f"Model not found at: {url}{why}"
        for url, why in {
            "no.mar": "",
            "local": "",
            ".": "",
            "loop.mar": ": Too many levels of symbolic links",
            "away.mar": NOT_BEHIND_THE_LINK,
            "local.mar/x": ": Not a directory",
            "%2e%2e%2fsecret.mar": "",
            "/etc/hosts": "",
            "a\0b": "",
            "a" * 5000: ": File name too long",
        }.items()
    },
    **{
        url: f"Relative path is not allowed in url: {url}"
        for url in ("../secret.mar", "..data/x", "model/../x", "..\\secret.mar")
    },
    **{
        url: f"Given URL {url} does not match any allowed URL(s)"
        for url in ("file://server/etc/hosts", "file:///%2e%2e/etc/hosts")
    },
}


@pytest.mark.parametrize(("url", "text"), REFUSED.items(), ids=range(len(REFUSED)))
def test_url_is_refused_with_torchserves_text(url, text, store):
    # When / Then
    with pytest.raises(ModelNotFound) as caught:
        locate(url, store)
    assert caught.value.message == text


def test_file_url_outside_of_the_store_is_a_failed_download(store):
    # When files outside of the store are asked for, one that is there and one that is not
    for url in ("file:///etc/hosts", "file:///no/such/file.mar"):
        with pytest.raises(DownloadFailed) as caught:
            locate(url, store)
        # Then the answer is the same, and TorchServe's
        assert caught.value.message == f"Failed to download archive from: {url}"


def test_named_pipe_in_the_store_is_no_archive(store):
    # Given one that has a model's name; opening it takes for ever
    os.mkfifo(store / "pipe.mar")
    # When / Then
    words = r"pipe\.mar: that is neither a file nor a folder"
    with pytest.raises(ModelNotFound, match=words):
        locate("pipe.mar", store)
    with pytest.raises(DownloadFailed, match=words):
        locate(f"file://{store}/pipe.mar", store)
    url = "https://models.example/pipe.mar"
    with pytest.raises(InternalError, match="Model file already exists"):
        locate(url, store, is_registered=True)


@pytest.mark.usefixtures("links")
@pytest.mark.parametrize(
    "name",
    [
        "local.mar",
        "model",
        "link.mar",
        "folder",
        "disk/model",
        "disk/blob",
        "within.mar",
        "mounted.mar",
    ],
)
def test_archive_is_found_in_the_store_also_behind_a_link_and_keeps_its_name(name, store, tmp_path):
    # Given a store that is known by another name, too
    other = tmp_path / "other"
    other.symlink_to(store)
    # When / Then
    assert locate(name, store) == store / name
    assert locate(f"file://{store}/{name}", other) == store / name
    assert locate(str(other / name), other) == other / name


@pytest.mark.usefixtures("links")
@pytest.mark.parametrize("name", ["disk/../../secret.mar", "{outside}/blob", "{outside}/model"])
def test_client_gets_nothing_by_the_path_that_a_link_leads_to(name, store, tmp_path):
    # When / Then
    for url in (
        name.format(outside=tmp_path / "disk"),
        name.format(outside=f"file://{tmp_path}/disk"),
    ):
        with pytest.raises((ModelNotFound, DownloadFailed)):
            locate(url, store)


def test_archive_behind_a_folder_that_is_closed_is_not_found_and_says_why(store, monkeypatch):
    # Given a disk that this user may not read
    def refuse(path, **_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", refuse)

    # When / Then
    with pytest.raises(ModelNotFound, match=r"Model not found at: local\.mar: Permission denied$"):
        locate("local.mar", store)


def test_url_is_refused_without_a_model_store():
    # When / Then
    with pytest.raises(ModelNotFound, match="Model store has not been configured"):
        locate("local.mar", None)
