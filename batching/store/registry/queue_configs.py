"""The part of a registration that `submit` reads: a hash that lies beside the version's queue.

The version's other permanent keys get a TTL when it is unregistered. Nodes delete them sooner, but
no node may be left.
"""

from batching.models.spec import ModelSpec, VersionKey
from batching.store.client_types import Client
from batching.store.clients import at
from batching.store.keys import UNREGISTERED_TTL_MS, VersionKeys
from batching.store.redis_errors import telling_unavailable


class QueueConfigs:
    """Writes and deletes configurations; raises StoreUnavailable when Redis does not answer."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, spec: ModelSpec) -> None:
        names = VersionKeys.of(spec.key)
        client = at(self._client, names.tag)
        with telling_unavailable(), client.pipeline(transaction=False) as pipe:
            pipe.hset(names.config, mapping=_fields(spec))
            _keep(pipe, names)
            pipe.execute()

    def complete(self, spec: ModelSpec) -> None:
        """Writes what is missing of the version's configuration."""
        names = VersionKeys.of(spec.key)
        client = at(self._client, names.tag)
        with telling_unavailable():
            # Read first: at maxmemory even an HSETNX that would change nothing is refused.
            known = client.hkeys(names.config)
            missing = {name: n for name, n in _fields(spec).items() if name.encode() not in known}
            if missing:
                with client.pipeline(transaction=False) as pipe:
                    for field, value in missing.items():
                        pipe.hsetnx(names.config, field, value)
                    _keep(pipe, names)
                    pipe.execute()

    def delete(self, key: VersionKey) -> None:
        """Deletes the configuration, which refuses submits; the other keys get a TTL."""
        names = VersionKeys.of(key)
        client = at(self._client, names.tag)
        with telling_unavailable():
            client.delete(names.config)
            with client.pipeline(transaction=False) as pipe:
                for name in names.permanent() - {names.config}:
                    pipe.pexpire(name, UNREGISTERED_TTL_MS)
                pipe.execute()


def _keep(pipe: Client, names: VersionKeys) -> None:
    # An earlier version of that name may have been unregistered a moment ago.
    for name in names.permanent() - {names.config}:
        pipe.persist(name)


def _fields(spec: ModelSpec) -> dict[str, int]:
    return {"max_queue": spec.job_queue_size}
