"""`ferry up` ends, in good order or not at all, and starts again: its jobs are still there."""

import re
from typing import Any

import pytest
import requests

from tests.e2e.archives import make_scripted
from tests.e2e.ferry_process import FerryProcess, FerryServer
from tests.support import eventually
from tests.topology.whole_suite import IS_ON_CLUSTER

ASYNC = {"Prefer": "respond-async"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(IS_ON_CLUSTER, reason="this is about a Redis of `ferry up`'s own"),
]


def submit(server: FerryServer, body: str, **headers: str) -> dict[str, Any]:
    sent = ASYNC | {name.replace("_", "-"): value for name, value in headers.items()}
    response = server.predict("lasting", body.encode(), headers=sent)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    return job


def result(server: FerryServer, job: dict[str, Any]) -> requests.Response:
    def final() -> requests.Response | None:
        answer = server.http.get(job["result_url"], headers={"Prefer": "wait=5"}, timeout=20)
        return None if answer.status_code == 202 else answer

    answer: requests.Response = eventually(final, 30)
    return answer


def await_file(server: FerryServer, first: dict[str, Any]) -> None:
    """Waits until the file that the first job has Redis begin is whole."""
    url = first["cancel_url"]
    eventually(lambda: "durable" not in server.http.get(url, timeout=20).json(), 10)


def status_of(server: FerryServer, job: dict[str, Any]) -> str:
    return str(server.http.get(job["cancel_url"], timeout=20).json()["status"])


def test_jobs_outlive_a_server_that_is_killed_with_all_of_its_processes(start, tmp_path):
    # Given a job that has ended, one that runs and one that waits
    server = start()
    archive, ledger = make_scripted(server.store, "lasting")
    server.register(archive, batch_size=1)
    ended = submit(server, "ended")
    await_file(server, ended)
    assert result(server, ended).text == "ended"
    running = submit(server, "hold|running")
    eventually(lambda: status_of(server, running) == "running", 10)
    waiting = submit(server, "waiting", Idempotency_Key="once")

    # When every process is killed at once, and the server starts again
    server.process.kill()
    ledger.let_go()
    server = start()

    # Then what had ended has its result, and nothing of it runs again
    assert result(server, ended).text == "ended"
    # And the others run: the one that ran before for the second time
    assert result(server, waiting).text == "waiting"
    assert result(server, running).text == "hold|running"
    assert ledger.executions("ended") == ledger.executions("waiting") == 1
    assert ledger.executions("hold|running") == 2
    # And a key that was used is known
    again = submit(server, "waiting", Idempotency_Key="once")
    assert again["id"] == waiting["id"]

    # And the server says where it keeps jobs, for this user only
    folder = tmp_path / "store-data" / str(server.port + 1)
    assert f"keeps jobs in {folder}\n" in re.sub(r" +\n", "\n", server.process.log())
    assert (folder / "redis").stat().st_mode & 0o077 == 0
    server.process.stop_cleanly()


@pytest.mark.long  # three servers
def test_another_server_of_one_store_has_neither_its_jobs_nor_its_models(start):
    # Given a server with a job that has ended
    first = start()
    archive, _ = make_scripted(first.store, "lasting")
    first.register(archive)
    job = submit(first, "one")
    assert result(first, job).text == "one"

    # When another one runs beside it
    second = start(port_base=first.port + 10)

    # Then
    assert second.manage("GET", "models").json()["models"] == []
    assert second.http.get(f"{second.inference}/jobs/{job['id']}", timeout=20).status_code == 404
    second.process.stop_cleanly()
    first.process.stop_cleanly()

    # And one that is to remember nothing takes none of it either, and says so in its jobs
    third = start("--no-config-snapshots")
    assert third.manage("GET", "models").json()["models"] == []
    third.register(archive)
    assert submit(third, "two")["durable"] is False
    assert "in memory only" in third.process.log()
    third.process.stop_cleanly()


@pytest.mark.long  # two servers
def test_damaged_file_is_told_of_and_left_alone(start, tmp_path):
    # Given a folder of an operator's choice, with a file that was damaged since
    chosen = tmp_path / "my data"
    words = ("--data-dir", str(chosen), "--no-config-snapshots", "--redis-fsync", "always")
    server = start(*words)
    archive, _ = make_scripted(server.store, "lasting")
    server.register(archive)
    await_file(server, submit(server, "one"))
    server.process.stop_cleanly()
    [file] = (chosen / "redis" / "appendonlydir").glob("*.incr.aof")
    file.write_bytes(b"no commands at all\r\n" * 100)

    # When
    broken = FerryProcess(tmp_path, ["up", "--port-base", str(server.port), *words])
    eventually(broken.has_ended, 30)

    # Then
    assert broken.exit_code() == 1
    assert "redis: Bad file format reading the append only file" in broken.log()
    assert f"Redis cannot go on with its data in {chosen}/redis. " in broken.log()
    assert file.read_bytes().startswith(b"no commands")
