"""An archive that came by URL goes when its last version is unregistered."""

import pytest

from batching.settings import Settings
from tests.unit.web import URL, web_with_archive
from workers.download import remove_download
from workers.fetch import locate_archive
from workers.model_files import ModelFiles


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


def test_download_is_removed_again_and_nothing_else_ever(store):
    # Given a download, and a file that the operator put there under a name from another URL
    locate_archive(URL, store, downloader=web_with_archive().downloader())
    (store / "own.mar").write_bytes(b"mine")

    # When / Then
    assert not remove_download(URL.replace("echo", "own"), store)
    assert not remove_download("https://other.example/echo.mar", store)
    assert not remove_download("echo.mar", store)
    assert not remove_download("own.mar", store)
    assert not remove_download("https://models.example/..%2fown.mar", store)
    assert (store / "own.mar").exists()
    assert remove_download(URL, store)
    assert not (store / "echo.mar").exists()
    assert not list(store.glob(".*"))


def test_download_can_be_registered_again_after_it_was_removed(store):
    # Given
    locate_archive(URL, store, downloader=web_with_archive().downloader())
    remove_download(URL, store)

    # When / Then
    assert locate_archive(URL, store, downloader=web_with_archive().downloader()).exists()


def test_node_forgets_downloads_and_keeps_the_operators_files(store):
    # Given
    locate_archive(URL, store, downloader=web_with_archive().downloader())
    (store / "own.mar").write_bytes(b"mine")
    files = ModelFiles(Settings(model_store=store))
    # When
    files.forget([URL, "own.mar", "file:///own.mar", ""])
    # Then
    assert [path.name for path in store.iterdir()] == ["own.mar"]
