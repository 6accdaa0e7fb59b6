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


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, (400, "BadRequestException", "Parameter url is required.")),
        ({"url": ""}, (404, "ModelNotFoundException", "empty url")),
        (
            {"url": "missing.mar"},
            (404, "ModelNotFoundException", "Model not found at: missing.mar"),
        ),
        (
            {"url": "../x.mar"},
            (404, "ModelNotFoundException", "Relative path is not allowed in url: ../x.mar"),
        ),
        (
            {"url": "http://127.0.0.1:1/x.mar"},
            (
                404,
                "ModelNotFoundException",
                "Given URL http://127.0.0.1:1/x.mar does not match any allowed URL(s)",
            ),
        ),
        (
            {"url": "scripted-1.0.mar", "runtime": "java"},
            (400, "BadRequestException", "Invalid RuntimeType value: java"),
        ),
        (
            {"url": "scripted-1.0.mar", "batch_size": "0"},
            (400, "BadRequestException", "batch_size must be 1 or more, not 0."),
        ),
        (
            {"url": "scripted-1.0.mar", "max_batch_delay": "-1"},
            (
                400,
                "BadRequestException",
                "max_batch_delay must be 0 or more milliseconds, not -1.",
            ),
        ),
        (
            {"url": "innocent-1.0.mar"},
            (
                409,
                "ConflictStatusException",
                "Model version 1.0 is already registered for model innocent",
            ),
        ),
    ],
)
def test_bad_registration_is_refused(
    server: FerryServer,
    scripted: str,
    innocent: str,
    parameters: dict[str, str],
    expected: tuple[int, str, str],
) -> None:
    # Given what is registered
    before = server.manage("GET", "models").json()

    # When a registration is wrong, beside other traffic
    with innocent_traffic(server, innocent):
        response = server.manage("POST", "models", **parameters)

    # Then it is refused with TorchServe's words and changes nothing
    assert_error(response.status_code, response.content, expected)
    assert server.manage("GET", "models").json() == before


def test_word_for_a_number_means_the_default(server: FerryServer, scripted: str) -> None:
    # When batch_size is not a number
    parameters = {"model_name": "wordy", "batch_size": "many", "initial_workers": 0}
    server.register(scripted, **parameters)

    # Then the default is used, as in TorchServe
    try:
        assert server.describe("wordy")["batchSize"] == 1
    finally:
        server.manage("DELETE", "models/wordy")


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


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        (
            "PUT",
            "models/innocent?min_worker=2&max_worker=1",
            (400, "BadRequestException", "max_worker cannot be less than min_worker."),
        ),
        ("PUT", "models/nobody", (404, "ModelNotFoundException", "Model not found: nobody")),
        ("GET", "models/nobody", (404, "ModelNotFoundException", "Model not found: nobody")),
        (
            "GET",
            "models/innocent/9.9",
            (
                404,
                "ModelVersionNotFoundException",
                "Model version: 9.9 does not exist for model: innocent",
            ),
        ),
        (
            "PUT",
            "models/innocent/9.9",
            (
                404,
                "ModelVersionNotFoundException",
                "Model version: 9.9 does not exist for model: innocent",
            ),
        ),
        (
            "PUT",
            "models/innocent/9.9/set-default",
            (
                404,
                "ModelVersionNotFoundException",
                "Model version 9.9 does not exist for model innocent",
            ),
        ),
        (
            "PUT",
            "models/nobody/1.0/set-default",
            (404, "ModelNotFoundException", "Model not found: nobody"),
        ),
        (
            "DELETE",
            "models/nobody",
            (404, "ModelNotFoundException", "Model not found: nobody"),
        ),
        (
            "DELETE",
            "models/innocent/9.9",
            (
                404,
                "ModelVersionNotFoundException",
                "Model version: 9.9 does not exist for model: innocent",
            ),
        ),
    ],
)
def test_bad_management_request_is_refused(
    server: FerryServer,
    innocent: str,
    method: str,
    path: str,
    expected: tuple[int, str, str],
) -> None:
    # Given how the served model looks
    before = server.describe(innocent)

    # When a management request is wrong, beside other traffic
    with innocent_traffic(server, innocent):
        response = server.manage(method, path)

    # Then it is refused, and the model is as it was
    assert_error(response.status_code, response.content, expected)
    after = server.describe(innocent)
    assert after["workers"] == before["workers"]
    assert after["minWorkers"] == before["minWorkers"]


def test_unregistering_twice_is_not_found_the_second_time(
    server: FerryServer, scripted: str
) -> None:
    # Given a model that was unregistered
    server.register(scripted, model_name="twice", initial_workers=0)
    assert server.manage("DELETE", "models/twice").status_code == 200

    # When it is unregistered again
    response = server.manage("DELETE", "models/twice")

    # Then there is nothing of that name
    expected = (404, "ModelNotFoundException", "Model not found: twice")
    assert_error(response.status_code, response.content, expected)
