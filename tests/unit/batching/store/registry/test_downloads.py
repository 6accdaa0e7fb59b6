"""Downloads under way, from a node to an ingress."""

from batching.settings.settings import Settings
from batching.store.clients import connect
from batching.store.registry.downloads import Download, Downloads
from workers.control_jobs import Progress

URL = "https://torchserve.pytorch.org/mar_files/a.mar"


def test_download_is_told_until_it_has_ended(store_backend):
    # Given
    downloads = Downloads(store_backend.client)
    # When
    downloads.note(Download(URL, 10, 0))
    downloads.note(Download(URL, 20, 100))
    downloads.note(Download("https://b", 5, 0))
    # Then
    assert downloads.all() == [Download("https://b", 5, 0), Download(URL, 20, 100)]
    # When
    downloads.forget(URL)
    # Then
    assert downloads.all() == [Download("https://b", 5, 0)]


def test_download_of_a_dead_node_is_forgotten_by_redis(store_backend):
    Downloads(store_backend.client).note(Download(URL, 1, 2))
    assert 0 < store_backend.client.ttl("{ferry}:downloads") <= 60


def test_b08_garbage_among_the_downloads_hides_no_other(store_backend):
    # Given
    downloads = Downloads(store_backend.client)
    downloads.note(Download(URL, 1, 2))
    # When
    store_backend.client.hset("{ferry}:downloads", mapping={b"\xff": b"1/2", b"bad": b"garbage"})
    # Then
    assert downloads.all() == [Download(URL, 1, 2)]


def test_redis_is_not_told_of_each_chunk(redis_server):
    # Given
    downloads = Downloads(connect(redis_server.url))
    progress = Progress(Settings(redis_url=redis_server.url), URL)
    # When
    for done in (1, 2, 3):
        progress.note(done, None)
    # Then
    assert downloads.all() == [Download(URL, 1, 0)]
    # When
    progress.end()
    # Then
    assert downloads.all() == []
