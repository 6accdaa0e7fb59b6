"""The server under test: one `ferry up` for the whole run, on ports and in folders of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.archives import Ledger, make_scripted
from tests.e2e.container_process import Container
from tests.e2e.ferry_process import FerryProcess, FerryServer, Start, ferry_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerryServer]:
    """Started; after the last test Ctrl-C must end it cleanly, with nothing left behind."""
    with ferry_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def scripted(server: FerryServer) -> str:
    """An archive of the scripted handler in the server's store, not registered."""
    return make_scripted(server.store, "scripted")[0]


@pytest.fixture(scope="session")
def innocent(server: FerryServer) -> str:
    """An echo model that is served all the time, for requests that nothing may harm."""
    archive, _ = make_scripted(server.store, "innocent")
    server.register(archive, batch_size=4, max_batch_delay=5)
    return "innocent"


@pytest.fixture
def ledger(server: FerryServer, scripted: str) -> Ledger:
    """What the scripted handler writes down, empty at the start of the test."""
    found = Ledger(server.store / f"{Path(scripted).stem}.ledger")
    found.clear()
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server of this store, on the first one's ports; whatever happens, all end."""
    servers: list[FerryServer] = []

    def start_one(*arguments: str, port_base: int | None = None) -> FerryServer:
        port_base = port_base or (servers[0].port if servers else None)
        servers.append(FerryServer(tmp_path, *arguments, port_base=port_base))
        servers[-1].wait_started()
        return servers[-1]

    yield start_one
    for server in servers:
        server.process.kill()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """Gives the entry point of the image `server`, not yet started."""
    mine = Container(tmp_path)
    yield mine
    if mine.process is not None:
        mine.process.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failure shows the end of the server's log."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            process = getattr(value, "process", value)
            if isinstance(process, FerryProcess):
                report.sections.append((f"log of {name}", process.log()))
    return report
