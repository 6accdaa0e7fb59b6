"""Archives and commands that go wrong get TorchServe's words, change nothing and harm nobody.

Source of the texts: TorchServe 0.12, management API.
"""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.archives import make_archive, make_scripted, manifest
from tests.e2e.clients import innocent_traffic
from tests.e2e.ferry_process import FerryServer
from tests.e2e.refusals import assert_error


def write_corrupt(store: Path) -> str:
    (store / "corrupt.mar").write_bytes(b"PK\x03\x04 no archive at all" * 50)
    return "corrupt.mar"


def write_truncated(store: Path) -> str:
    name = make_archive(store, "whole", {"handler.py": "def handle(data, context): return data"})
    content = (store / name).read_bytes()
    (store / "truncated.mar").write_bytes(content[: len(content) // 2])
    return "truncated.mar"


def write_without_model(store: Path) -> str:
    with zipfile.ZipFile(store / "no-model.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", '{"runtime": "python"}')
    return "no-model.mar"


def write_unreadable_manifest(store: Path) -> str:
    with zipfile.ZipFile(store / "bad-json.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", "{ this is not JSON")
    return "bad-json.mar"


def write_symlink(store: Path) -> str:
    entry = zipfile.ZipInfo("handler.py")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(store / "link.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", manifest("link", "1.0", "handler.py"))
        archive.writestr(entry, "/etc/passwd")
    return "link.mar"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_corrupt, "corrupt.mar is not a zip (.mar) archive, or it is damaged or encrypted."),
        (
            write_truncated,
            "truncated.mar is not a zip (.mar) archive, or it is damaged or encrypted.",
        ),
        (write_without_model, "Model name is not defined."),
        (write_unreadable_manifest, "Failed to parse signature.json."),
        (write_symlink, "link.mar holds a link, device or other special file: 'handler.py'."),
    ],
)
def test_bad_archive_is_refused_as_invalid_model(
    server: FerryServer, innocent: str, write: Callable[[Path], str], message: str
) -> None:
    # When a broken archive is registered beside other traffic
    before = server.manage("GET", "models").json()
    with innocent_traffic(server, innocent):
        name = write(server.store)
        response = server.manage("POST", "models", url=name, initial_workers=1)

    # Then it is refused for what it is, and nothing is registered
    expected = (400, "InvalidModelException", message)
    assert_error(response.status_code, response.content, expected)
    assert server.manage("GET", "models").json() == before


@pytest.mark.parametrize("entry", ["../evil.py", "a/../../evil.py", "/tmp/ferry-evil.py"])
def test_archive_with_paths_that_leave_it_is_refused_and_writes_nothing(
    server: FerryServer, innocent: str, entry: str
) -> None:
    # When an archive holds a path that would land elsewhere
    with zipfile.ZipFile(server.store / "evil.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", manifest("evil", "1.0", "handler.py"))
        archive.writestr("handler.py", "def handle(data, context): return data")
        archive.writestr(entry, "raise SystemExit")
    with innocent_traffic(server, innocent):
        response = server.manage("POST", "models", url="evil.mar", initial_workers=1)

    # Then it is refused, and no file of that name is anywhere
    expected = (500, "InternalServerException", "Failed to save model: evil.mar")
    assert_error(response.status_code, response.content, expected)
    assert not list(server.folder.rglob("*evil.py"))
    assert not Path("/tmp/ferry-evil.py").exists()
    assert server.manage("GET", "models/evil").status_code == 404


@pytest.mark.parametrize("chars", [21, 500_000])
def test_handler_that_cannot_be_loaded_fails_its_registration(
    server: FerryServer, innocent: str, chars: int
) -> None:
    # Given an archive whose handler raises while it is imported, with much to say or little
    load_error = "secret of the handler".ljust(chars, "!")
    name = f"broken-{chars}"
    archive, _ = make_scripted(server.store, name, load_error=load_error)

    # When it is registered with a worker
    with innocent_traffic(server, innocent):
        response = server.manage(
            "POST", "models", url=archive, initial_workers=1, synchronous="true"
        )

    # Then the registration fails and leaves nothing
    text = f"Failed to start workers for model {name} version: 1.0"
    assert_error(response.status_code, response.content, (500, "InternalServerException", text))
    assert server.manage("GET", f"models/{name}").status_code == 404
    assert server.predict(name).status_code == 404

    # And the operator reads why
    told = f"not started model={name} version=1.0: RuntimeError: secret of the handler"
    assert told in server.process.log()
