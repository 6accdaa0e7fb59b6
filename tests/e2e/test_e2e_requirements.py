"""Archives with a requirements.txt, on a server that installs them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer, ferry_server
from tests.support import eventually
from tests.timing import assert_within
from tests.unit.workers.archives.wheels import PACKAGE, offline, write_wheel

pytestmark = pytest.mark.slow

HANDLER = f"""
import sys
import {PACKAGE}

def handle(data, context):
    return [f"{{{PACKAGE}.ANSWER}} {{sys.prefix}}"] * len(data or ())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerryServer]:
    folder = tmp_path_factory.mktemp("requirements")
    write_wheel(folder / "wheels")
    environment = offline(folder / "wheels")
    with ferry_server(folder, "--install-py-dep-per-model", environment=environment) as running:
        yield running


def archive_with(store: Path, name: str, requirements: str) -> str:
    files = {"handler.py": HANDLER, "requirements.txt": requirements}
    return make_archive(store, name, files, requirementsFile="requirements.txt")


def failed_workers(server: FerryServer, name: str) -> list[dict[str, str]]:
    return [worker for worker in server.describe(name)["workers"] if worker.get("error")]


def test_model_runs_in_an_environment_of_its_own(server: FerryServer) -> None:
    # Given a handler that needs a package which the server does not have
    archive = archive_with(server.store, "needy", f"{PACKAGE}==1.0\n")
    plain = make_archive(server.store, "plain", {"handler.py": HANDLER})

    # When it is registered
    with server.model(archive, "needy", initial_workers=2):
        answer, prefix = server.predict("needy", b"").text.split()

        # Then its workers have the package, and no other worker has it
        assert answer == "42"
        assert Path(prefix).is_relative_to(server.folder / "work" / "environments")
        refused = server.manage("POST", "models", url=plain, initial_workers=1)
        assert (refused.status_code, refused.json()["code"]) == (500, 500)


def test_installation_that_fails_is_in_the_description_and_is_not_repeated(
    server: FerryServer,
) -> None:
    # Given the same, without waiting for its workers
    archive = archive_with(server.store, "asleep", "no_such_package_anywhere_else\n")
    with server.cleaned_up("asleep"):
        # When
        parameters = {"initial_workers": 1, "synchronous": "false"}
        assert server.manage("POST", "models", url=archive, **parameters).status_code == 202

        # Then a request that waits for its worker meanwhile is refused in time
        started = time.monotonic()
        assert server.predict("asleep", b"").status_code == 503
        assert_within(time.monotonic() - started, 40)

        # And the description says why
        (worker,) = eventually(lambda: failed_workers(server, "asleep"), 30)
        assert worker["error"].startswith("Custom pip package installation failed")
        assert server.predict("asleep", b"").status_code == 503
        assert server.process.log().count("installing model=asleep") == 1
