"""Where archives are looked for, and where not."""

import os

import pytest

from batching.errors import DownloadFailed, InternalError, ModelNotFound
from tests.unit.workers.archives.web import ALLOWED, archive_bytes
from workers.archives.fetch import locate_archive


@pytest.fixture
def store(store, tmp_path):
    (store / "local.mar").write_bytes(archive_bytes())
    (store / "model").mkdir()
    (store / "model" / "echo.py").touch()
    (tmp_path / "secret.mar").write_bytes(archive_bytes())
    (store / "link.mar").symlink_to(tmp_path / "secret.mar")
    (store / "linked").symlink_to(tmp_path)
    (store / "loop.mar").symlink_to("loop.mar")
    (store / "within.mar").symlink_to("local.mar")
    return store


@pytest.mark.parametrize("name", ["local.mar", "model"])
def test_archive_is_found_in_the_store(name, store):
    # When / Then
    assert locate_archive(name, store) == store / name
    assert locate_archive(f"file://{store}/{name}", store) == store / name
    assert locate_archive(str(store / name), store) == store / name


@pytest.mark.parametrize("path", ["/home/me/model_store/local.mar", "model_store/local.mar"])
def test_archive_is_found_by_its_name_where_the_store_has_another_path(path, store):
    # When / Then
    assert locate_archive(path, store) == store / "local.mar"


def test_folder_of_that_name_in_the_store_is_another_model(store):
    # When / Then
    with pytest.raises(ModelNotFound, match="Model not found at: /opt/model"):
        locate_archive("/opt/model", store)


def test_folder_that_the_operator_names_may_be_outside_of_the_store(store, tmp_path):
    # Given
    folder = tmp_path / "own"
    folder.mkdir()

    # When / Then
    assert locate_archive(str(folder), store, startup_models=f"a.mar, own={folder}") == folder
    assert locate_archive(str(folder), store, startup_models=str(folder)) == folder
    for startup_models in ("", "all", f"own={folder}er"):
        with pytest.raises(ModelNotFound, match="Model not found at: "):
            locate_archive(str(folder), store, startup_models=startup_models)


BEHIND_A_LINK = (
    ". A link leads out of the model store there, and is not followed: put the archive itself into "
    "the model store"
)
REFUSED = {
    "empty": ("", "empty url"),
    "relative": ("../secret.mar", "Relative path is not allowed in url: ../secret.mar"),
    "missing": ("no.mar", "Model not found at: no.mar"),
    "cut short": ("local", "Model not found at: local. Did you mean local.mar?"),
    "cut short, link out": ("link", "Model not found at: link"),
    "the store": (".", "Model not found at: ."),
    "link out": ("link.mar", f"Model not found at: link.mar{BEHIND_A_LINK}"),
    "through link": ("linked/secret.mar", f"Model not found at: linked/secret.mar{BEHIND_A_LINK}"),
    "through link, nothing there": (
        "linked/x.mar",
        f"Model not found at: linked/x.mar{BEHIND_A_LINK}",
    ),
    "link to itself": ("loop.mar", "Model not found at: loop.mar"),
    "absolute": ("/etc/hosts", "Model not found at: /etc/hosts"),
    "file host": (
        "file://server/etc/hosts",
        "Given URL file://server/etc/hosts does not match any allowed URL(s)",
    ),
    "encoded dots": (
        "file:///%2e%2e/etc/hosts",
        "Given URL file:///%2e%2e/etc/hosts does not match any allowed URL(s)",
    ),
    "nul": ("a\0b", "Model not found at: a\0b"),
    "too long": ("a" * 5000, f"Model not found at: {'a' * 5000}"),
}


@pytest.mark.parametrize(("url", "text"), REFUSED.values(), ids=REFUSED)
def test_url_is_refused_with_torchserves_text(url, text, store):
    # When / Then
    with pytest.raises(ModelNotFound) as caught:
        locate_archive(url, store)
    assert caught.value.message == text


def test_file_url_outside_of_the_store_is_a_failed_download(store):
    # When files outside of the store are asked for, one that is there and one that is not
    for url in ("file:///etc/hosts", "file:///no/such/file.mar"):
        with pytest.raises(DownloadFailed) as caught:
            locate_archive(url, store)

        # Then the answer is the same, and TorchServe's
        assert caught.value.message == f"Failed to download archive from: {url}"


def test_file_url_that_a_link_leads_out_of_the_store_says_so(store, tmp_path):
    # Given a store that is known by another name, too
    (tmp_path / "other").symlink_to(store)

    # When
    for folder in (store, tmp_path / "other"):
        url = f"file://{folder}/link.mar"
        with pytest.raises(DownloadFailed) as caught:
            locate_archive(url, tmp_path / "other")

        # Then
        assert caught.value.message == f"Failed to download archive from: {url}{BEHIND_A_LINK}"


def test_named_pipe_in_the_store_is_no_archive(store):
    # Given one that has a model's name; opening it takes for ever
    os.mkfifo(store / "pipe.mar")

    # When / Then
    words = r"pipe\.mar: that is neither a file nor a folder"
    with pytest.raises(ModelNotFound, match=words):
        locate_archive("pipe.mar", store)
    with pytest.raises(DownloadFailed, match=words):
        locate_archive(f"file://{store}/pipe.mar", store)
    url = "https://models.example/pipe.mar"
    with pytest.raises(InternalError, match="Model file already exists"):
        locate_archive(url, store, is_registered=True, allowed_urls=ALLOWED)


def test_link_within_the_store_is_followed(store):
    # When / Then
    assert locate_archive("within.mar", store) == store / "local.mar"


def test_url_is_refused_without_a_model_store():
    # When / Then
    with pytest.raises(ModelNotFound, match="Model store has not been configured"):
        locate_archive("local.mar", None)


def test_only_torchserves_archives_are_allowed_by_default(store):
    # When / Then
    with pytest.raises(ModelNotFound, match="does not match any allowed URL"):
        locate_archive("https://pytorch.example/mar_files/echo.mar", store)
