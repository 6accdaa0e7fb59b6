"""An archive that came by URL goes when its last version is unregistered."""

import os

import pytest

from batching.settings.settings import Settings
from tests.support import make_spec
from tests.unit.workers.archives.web import URL, web_with_archive
from workers.archives.fetch import locate_archive, remove_download
from workers.archives.model_files import ModelFiles


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


@pytest.mark.parametrize(
    "other", ["echo.mar", "file:///store/echo.mar", "https://x.example/echo.mar"]
)
def test_node_keeps_a_download_that_another_version_may_mean(other, store):
    # Given
    locate_archive(URL, store, downloader=web_with_archive().downloader())
    files = ModelFiles(Settings(model_store=store))

    # When / Then
    files.forget([URL], kept=[other])
    assert (store / "echo.mar").exists()
    files.forget([URL], kept=["own.mar"])
    assert not (store / "echo.mar").exists()


def test_download_that_was_not_needed_for_long_goes(store, tmp_path):
    # Given a download that was registered under its name in the store, and the operator's own file
    locate_archive(URL, store, downloader=web_with_archive().downloader())
    (store / "own.mar").write_bytes(b"mine")
    files = ModelFiles(
        Settings(model_store=store, work_dir=tmp_path / "work", unused_files_kept_s=60)
    )

    def sweep(*specs):
        """Whether the download is there when the node looks after a long time."""
        for place in store.iterdir():
            os.utime(place, (1, 1))
        files.sweep(specs)
        return (store / "echo.mar").exists()

    # When / Then: after its start the node does not know yet who will be registered again
    assert sweep()
    assert sweep(make_spec(model_url="echo.mar"))
    assert sweep(make_spec(model_url=URL))
    files.sweep([])
    assert (store / "echo.mar").exists(), "it was needed just now"
    assert not sweep()
    assert [path.name for path in store.iterdir()] == ["own.mar"]
