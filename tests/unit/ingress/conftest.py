import contextlib
import os
import signal
from dataclasses import dataclass, replace
from urllib.parse import unquote

import pytest
import requests

from batching.errors import ModelNotFound
from batching.models.spec import ArchiveInfo, ModelSpec
from batching.settings.settings import Settings
from batching.store.clients import connect
from ingress.rest.app import create_app
from ingress.role import Role
from ingress.server import application
from ingress.services import Services, TimeLimits
from tests.tls import write_certificate
from tests.unit.ingress.simulated_node import DEAD_AFTER_S, SimulatedNode
from tests.unit.ingress.sockets import assert_tells_nothing, listening_on, loop_in_thread


@pytest.fixture
def redis_url(redis_server):
    client = connect(redis_server.url)
    client.flushall()
    client.close()
    return redis_server.url


class KnownArchives:
    """Stands for the control queue: archives by URL, without a node's disk."""

    def __init__(self):
        self.archives = {}

    def add(self, url, name, version="1.0", **config):
        self.archives[url] = ArchiveInfo(url, "0" * 64, name, version, "h.py", "python", {}, config)

    def inspect_archive(self, url, *, timeout_s, may_be_downloaded=False):
        if url not in self.archives:
            raise ModelNotFound(f"Model not found at: {url}")
        return self.archives[url]


@dataclass
class Ingress:
    """A running ingress: two real listeners and the Flask application of each."""

    services: Services
    archives: KnownArchives
    inference_url: str
    management_url: str
    apps: dict

    @property
    def registry(self):
        return self.services.registry

    def predict(self, path, method="POST", **arguments):
        return self._ask(method, self.inference_url + path, **arguments)

    def manage(self, method, path, **arguments):
        return self._ask(method, self.management_url + path, **arguments)

    def _ask(self, method, url, **arguments):
        answer = requests.request(method, url, timeout=20, **arguments)
        if answer.status_code >= 400:
            head = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
            assert_tells_nothing(head + answer.text, unquote(url) + str(arguments))
        return answer

    def register(self, name="echo", version="1.0", **fields):
        defaults = {"min_worker": 1, "max_worker": 1, "startup_timeout_s": 5}
        spec = ModelSpec(name, version, f"{name}.mar", "h.py", **{**defaults, **fields})
        self.registry.create(spec)
        with self.registry.changes() as wait:
            while len(self.registry.workers(spec.key)) < spec.min_worker:
                wait(5.0)
        return spec


@pytest.fixture
def node(redis_url):
    simulated = SimulatedNode(redis_url)
    simulated.start()
    yield simulated
    simulated.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A certificate for `localhost`, opened."""
    written = write_certificate(tmp_path_factory.mktemp("tls"))
    written.open()
    return written


# What tests put other values in place of: a key file where tokens are asked for, time limits that
# can be waited for, and proxies.


@pytest.fixture
def keys():
    return None


@pytest.fixture
def patience():
    return TimeLimits()


@pytest.fixture
def trusted_proxies():
    return ""


@pytest.fixture
def ingress(redis_url, keys, patience, trusted_proxies):
    settings = replace(
        Settings(),
        redis_url=redis_url,
        max_request_size_bytes=100_000,
        unregister_model_timeout_s=3,
        dead_after_s=DEAD_AFTER_S,
        trusted_proxies=trusted_proxies,
    )
    archives = KnownArchives()
    with contextlib.ExitStack() as stack:
        loop, call = stack.enter_context(loop_in_thread())
        services = Services(settings, keys, loop)
        services.control, services.patience = archives, patience
        call(services.start())
        stack.callback(services.client.close)
        stack.callback(lambda: call(services.close()))
        apps = {role: create_app(services, [role]) for role in Role}
        urls = [
            stack.enter_context(listening_on(call, application(services, frozenset({role}))))
            for role in (Role.INFERENCE, Role.MANAGEMENT)
        ]
        yield Ingress(services, archives, *urls, apps)


@pytest.fixture
def frozen(redis_server):
    """Redis takes connections and commands but answers nothing for the length of a with block."""

    @contextlib.contextmanager
    def freeze():
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)

    return freeze


@pytest.fixture
def echo(ingress, node):
    """The ingress, with a model `echo` that has a worker."""
    ingress.register("echo")
    return ingress
