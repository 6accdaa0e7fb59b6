"""Four hosts on one network, one rig on them for the whole run."""

import pytest

from tests.chaos.conftest import pytest_runtest_makereport, record_promise
from tests.chaos.crowd import Crowd
from tests.network.hosts import Cut, Network, can_be_deaf, why_impossible
from tests.network.rig import NAMES, NetworkRig

__all__ = ["pytest_runtest_makereport", "record_promise"]


@pytest.fixture
def how(request, network):
    """How the host loses its network; skips the ways that this machine does not have."""
    if request.param is Cut.DEAF and not can_be_deaf():
        pytest.skip("tc with netem is missing: packets of one direction cannot be dropped")
    return request.param


@pytest.fixture(scope="session")
def network():
    """A switch with a host for each part; skips where this machine cannot have them."""
    if reason := why_impossible():
        pytest.skip(reason)
    with Network(NAMES) as network:
        yield network


@pytest.fixture(scope="session")
def whole_rig(network, tmp_path_factory):
    rig = NetworkRig(tmp_path_factory.mktemp("network"), network)
    yield rig
    rig.close()


@pytest.fixture
def rig(whole_rig):
    """Redis, an ingress and two nodes on a host each."""
    yield whole_rig
    whole_rig.restore()


@pytest.fixture
def crowd(rig):
    """Clients of the ingress, over a line that is never cut."""
    with Crowd(rig.port, rig.host) as crowd:
        yield crowd
