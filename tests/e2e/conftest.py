"""The server under test: one `ferry up` for the whole run, on ports and in folders of its own."""

from pathlib import Path

import pytest

from tests.e2e.archives import Ledger, make_scripted
from tests.e2e.container_process import Container
from tests.e2e.ferry_process import FerryServer, ferry_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Started; after the last test Ctrl-C must end it cleanly, with nothing left behind."""
    with ferry_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def scripted(server):
    """An archive of the scripted handler in the server's store, not registered."""
    return make_scripted(server.store, "scripted")[0]


@pytest.fixture(scope="session")
def innocent(server):
    """An echo model that is served all the time, for requests that nothing may harm."""
    archive, _ = make_scripted(server.store, "innocent")
    server.register(archive, batch_size=4, max_batch_delay=5)
    return "innocent"


@pytest.fixture
def ledger(server, scripted):
    """What the scripted handler writes down, empty at the start of the test."""
    found = Ledger(server.store / f"{Path(scripted).stem}.ledger")
    found.clear()
    return found


@pytest.fixture
def start(tmp_path):
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
def container(tmp_path):
    """Gives the entry point of the image `server`, not yet started."""
    mine = Container(tmp_path)
    yield mine
    if mine.process is not None:
        mine.process.kill()
