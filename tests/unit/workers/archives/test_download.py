"""Downloads, under the rules against SSRF, until their last version is unregistered."""

import re

import httpx
import pytest

from batching.addresses import is_public
from batching.errors import DownloadFailed, InternalError, InvalidModel, ModelNotFound
from batching.settings.settings import Settings
from tests.unit.workers.archives.web import (
    ALLOWED,
    PUBLIC,
    URL,
    Web,
    archive_bytes,
    locate,
    redirect,
    served,
    web_with_archive,
)
from workers.archives.fetch import Downloader, remove_download
from workers.archives.model_files import ModelFiles


@pytest.fixture
def store(store):
    (store / "local.mar").write_bytes(archive_bytes())
    return store


def test_b10_download_connects_to_the_address_that_was_checked_and_lands_in_the_store(store):
    # Given
    web = web_with_archive()
    # When
    path = locate(URL, store, web)
    # Then
    assert path == store / "echo.mar"
    assert path.read_bytes() == archive_bytes()
    assert [path.name for path in store.glob(".*")] == [".echo.mar.url"]
    (request,) = web.requests
    assert web.resolved == [("models.example", 443)]
    assert request.url.host == PUBLIC
    assert request.headers["host"] == "models.example"
    assert request.extensions["sni_hostname"] == "models.example"


FORBIDDEN = [
    "http://models.example/echo.mar",
    "ftp://models.example/echo.mar",
    "s3://models.example/echo.mar",
    "https://other.example/echo.mar",
    "https://models.example@evil.example/echo.mar",
    "https://user@models.example/echo.mar",
    "https://models.example\\@evil.example/echo.mar",
    "https://models.example/ echo.mar",
    "https://models.example/echo.mar\nx",
    "https://models.example.evil.example/echo.mar",
    "gopher:models.example",
]


@pytest.mark.parametrize("url", FORBIDDEN)
def test_b10_url_that_is_not_allowed_is_never_resolved(url, store):
    # Given
    web = web_with_archive()
    # When / Then
    with pytest.raises(ModelNotFound) as caught:
        locate(url, store, web, allowed_urls=ALLOWED + r", https://user.*")
    assert caught.value.message == f"Given URL {url} does not match any allowed URL(s)"
    assert not web.resolved
    assert not web.requests


PRIVATE = [
    "127.0.0.1",
    "10.0.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "::",
    "fe80::1",
    "fc00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "fec0::1",
    "64:ff9b:1::7f00:1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:0:7f00:1",
    "4000::1",
    "3fff::1",
    "192.0.0.8",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_b10_private_address_is_refused_even_next_to_a_public_one(address, store):
    # Given
    web = web_with_archive()
    web.addresses["models.example"] = [PUBLIC, address]
    # When / Then
    with pytest.raises(ModelNotFound, match="does not match any allowed URL") as caught:
        locate(URL, store, web)
    assert caught.value.message.endswith(": models.example leads to an address that is not public")
    assert not web.requests


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_public_address_is_public(address):
    # When / Then
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "0x7f.1", "2130706433", "localhost"])
def test_b10_loopback_in_any_spelling_is_refused(host, store):
    # Given: the real resolver, and no network at all behind it
    def refuse(request):
        raise AssertionError(request.url)

    downloader = Downloader("https://.*", transport=httpx.MockTransport(refuse))
    # When / Then
    with pytest.raises(ModelNotFound, match="does not match any allowed URL"):
        locate(f"https://{host}/echo.mar", store, downloader=downloader)


def test_redirect_is_followed_when_its_target_is_allowed(store):
    # Given
    web = web_with_archive()
    web.answers["models.example/a.mar"] = redirect("/store/echo.mar")
    # When
    path = locate("https://models.example/a.mar", store, web)
    # Then
    assert path == store / "a.mar"
    assert len(web.requests) == 2


@pytest.mark.parametrize(
    ("location", "allowed_urls", "why"),
    [
        ("https://evil.example/x.mar?sig=secret", ALLOWED, "it redirects to "),
        ("http://models.example/x.mar", ALLOWED, "it redirects to "),
        ("file:///etc/hosts", ALLOWED, "it redirects to "),
        ("//evil/x", ALLOWED, "it redirects to "),
        ("https://in.example/b.mar", "https://.*", "an address that is not public"),
    ],
)
def test_b10_redirect_is_refused_when_its_target_is_not_allowed(location, allowed_urls, why, store):
    # Given
    addresses = {"in.example": ["127.0.0.1"]}
    web = Web({"models.example/a.mar": redirect(location)}, addresses)
    # When / Then
    with pytest.raises(ModelNotFound, match="does not match any allowed URL") as caught:
        locate("https://models.example/a.mar", store, web, allowed_urls=allowed_urls)
    assert why in caught.value.message
    assert "secret" not in caught.value.message
    assert len(web.requests) == 1


FAILURES = {
    "404": httpx.Response(404),
    "204": httpx.Response(204),
    "redirect loop": redirect("/store/echo.mar"),
    "refused": httpx.ConnectError("refused"),
    "timeout": httpx.ReadTimeout("slow"),
    "redirect nowhere": httpx.Response(302),
    "too large": served(b"x" * 1001),
}


@pytest.mark.parametrize("answer", FAILURES.values(), ids=FAILURES)
def test_failed_download_leaves_nothing_but_a_reason_in_the_log(answer, store, caplog):
    # Given
    before = sorted(store.iterdir())
    web = Web({"models.example/store/echo.mar": answer})
    # When / Then
    with pytest.raises(DownloadFailed) as caught:
        locate(URL, store, downloader=web.downloader(max_bytes=1000))
    assert caught.value.message == f"Failed to download archive from: {URL}"
    assert re.search(f"not downloaded url={URL}: [A-Z][A-Za-z]+: .", caplog.text)
    assert sorted(store.iterdir()) == before
    assert len(web.requests) <= 4


def test_download_that_is_no_archive_leaves_nothing(store):
    # Given
    before = sorted(store.iterdir())
    web = Web({"models.example/store/echo.mar": served(b"<html>")})

    # When / Then
    with pytest.raises(InvalidModel):
        locate(URL, store, web)
    assert sorted(store.iterdir()) == before


IN_THE_WAY = {
    "a file": lambda place: place.write_bytes(b"mine"),
    "a link to a disk that is away": lambda place: place.symlink_to("/no-disk/echo.mar"),
}


@pytest.mark.parametrize("put", IN_THE_WAY.values(), ids=IN_THE_WAY)
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "during the download"])
def test_download_never_takes_the_place_of_what_an_operator_put_there(put, is_late, store):
    # Given
    place = store / "echo.mar"
    web = web_with_archive(lambda: put(place))
    if not is_late:
        put(place)
    # When / Then
    with pytest.raises(InternalError, match=r"^Model file already exists echo\.mar$"):
        locate(URL, store, web)
    assert place.is_symlink() or place.read_bytes() == b"mine"
    assert bool(web.resolved) == is_late
    assert not list(store.glob(".*"))


def test_download_that_another_node_has_brought_meanwhile_is_not_in_the_way(store):
    # Given nodes that share their store, and start a worker each
    def bring():
        locate(URL, store, web_with_archive())

    # When
    path = locate(URL, store, web_with_archive(bring))
    # Then
    assert path.read_bytes() == archive_bytes()


@pytest.mark.parametrize("path", ["", "x/", "%2e%2e%2fevil.mar", ".hidden"])
def test_download_needs_a_plain_file_name(path, store):
    # Given
    web = web_with_archive()
    # When / Then
    with pytest.raises(DownloadFailed, match="has to end in a file name"):
        locate(f"https://models.example/{path}", store, web)
    assert not web.requests


# --- and their end


def test_download_is_removed_again_and_nothing_else_ever(store):
    # Given a download, and a file that the operator put there under a name from another URL
    locate(URL, store, web_with_archive())
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
    locate(URL, store, web_with_archive())
    files = ModelFiles(Settings(model_store=store))
    # When / Then
    files.forget([URL], kept=[other])
    assert (store / "echo.mar").exists()
    files.forget([URL], kept=["own.mar"])
    assert not (store / "echo.mar").exists()
