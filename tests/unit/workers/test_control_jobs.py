"""A registration by URL, up to what the node's control process makes of it."""

import threading

import pytest

from batching.store.clients import connect
from batching.store.registry.registry import Registry
from tests.support import eventually, make_spec
from tests.unit.workers.archives.web import (
    ALLOWED,
    URL,
    Web,
    archive_bytes,
    locate,
    served,
    web_with_archive,
)
from workers import control_jobs
from workers.archives import fetch
from workers.control_jobs import inspect_archive

EXISTS = {"error": "InternalError", "message": "Model file already exists echo.mar"}


@pytest.fixture
def registry(redis_server):
    client = connect(redis_server.url)
    client.flushall()
    yield Registry(client)
    client.flushall()
    client.close()


@pytest.fixture
def store(store, redis_server, tmp_path, monkeypatch):
    """A model store with a download whose registration has failed afterwards."""
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    monkeypatch.setenv("FERRY_MODEL_STORE", str(store))
    monkeypatch.setenv("FERRY_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setenv("FERRY_ALLOWED_URLS", ALLOWED)
    locate(URL, store, web_with_archive())
    return store


@pytest.fixture
def newer(monkeypatch):
    """The bytes that the URL has by now."""
    content = archive_bytes(handler=b"def handle(data, context): return []")
    web = Web({"models.example/store/echo.mar": served(content)})
    monkeypatch.setattr(fetch, "Downloader", web.downloader)
    return content


@pytest.mark.parametrize("is_at_start", [False, True])
def test_registration_by_url_is_repeated_after_it_has_failed_or_takes_the_download_at_start(
    is_at_start, registry, store, newer
):
    # When
    outcome = inspect_archive(URL, may_be_downloaded=is_at_start)
    # Then
    assert outcome["value"]["url"] == URL
    assert (store / "echo.mar").read_bytes() == (archive_bytes() if is_at_start else newer)


def test_registration_by_url_replaces_a_download_that_could_not_be_loaded(registry, store, newer):
    # Given a version that only tells of it
    registry.create(make_spec(model_url=URL, load_error="echo.mar is damaged"))
    # When / Then
    assert "value" in inspect_archive(URL)
    assert (store / "echo.mar").read_bytes() == newer


@pytest.mark.parametrize("url", [URL, "echo.mar", "file:///store/echo.mar", ""])
def test_registration_by_url_is_refused_where_a_version_has_the_file_or_an_operator(
    url, registry, store, newer
):
    # Given
    if url:
        registry.create(make_spec(model_url=url))
    else:
        (store / ".echo.mar.url").unlink()
    # When / Then
    assert inspect_archive(URL) == EXISTS
    assert (store / "echo.mar").read_bytes() == archive_bytes()


def test_beats_of_a_job_go_on_after_an_error_of_the_network():
    # Given a connection that fails by what its socket says
    asked = []

    class Connection:
        def exists(self, _key):
            asked.append(len(asked))
            raise OSError("no route to host")

    is_over = threading.Event()
    job = control_jobs.ControlJob("job", connection=Connection())
    job.beat_s = 0.01
    # When
    beating = threading.Thread(target=job._beat, args=(is_over,), daemon=True)
    beating.start()
    # Then
    eventually(lambda: len(asked) > 1)
    is_over.set()
    beating.join()
