"""Archives and commands that go wrong get TorchServe's words, change nothing and harm no model.

Source of the texts: TorchServe 0.12, management API.
"""

import zipfile
from pathlib import Path

import pytest

from tests.e2e.archives import HANDLER, make_scripted, manifest
from tests.e2e.clients import innocent_traffic
from tests.e2e.ferry_process import FerryServer
from tests.e2e.refusals import assert_error

RAISES = '    raise RuntimeError(Path("load_error").read_text(encoding="utf-8"))'


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

    # Then the registration fails in TorchServe's words, and tells this machine's operator where
    told = response.json()["message"].splitlines()
    assert response.status_code == 500
    assert told[0] == f"Failed to start workers for model {name} version: 1.0"
    line = HANDLER.read_text(encoding="utf-8").splitlines().index(RAISES) + 1
    assert told[2] == f'  File "handler.py", line {line}, in <module>'
    assert told[4].startswith("RuntimeError: secret of the handler")
    assert len(response.content) < 8_000

    # And it leaves nothing
    assert server.manage("GET", f"models/{name}").status_code == 404
    assert server.predict(name).status_code == 404

    # And the operator reads why
    told = f"not started model={name} version=1.0: RuntimeError: secret of the handler"
    assert told in server.process.log()
