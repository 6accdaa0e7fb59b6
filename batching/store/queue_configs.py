"""What `submit` reads of a version's registration. It lives with the version's queue."""

from batching.model_spec import ModelSpec, VersionKey
from batching.store.connection import Client, at
from batching.store.keys import VersionKeys
from batching.store.refusals import telling_unavailable


class QueueConfigs:
    """Writes and deletes configurations; all raise StoreUnavailable when Redis does not answer."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, spec: ModelSpec) -> None:
        """The version has the configuration of this registration."""
        names = VersionKeys.of(spec.key)
        with telling_unavailable():
            at(self._client, names.tag).hset(names.config, mapping=_fields(spec))

    def complete(self, spec: ModelSpec) -> None:
        """The version has a configuration: that of this registration where there was none."""
        names = VersionKeys.of(spec.key)
        client = at(self._client, names.tag)
        with telling_unavailable():
            # Asked first: at maxmemory even an HSETNX that would change nothing is refused.
            known = client.hkeys(names.config)
            for field, value in _fields(spec).items():
                if field.encode() not in known:
                    client.hsetnx(names.config, field, value)

    def delete(self, key: VersionKey) -> None:
        """The version has none, so that nothing can be submitted to it."""
        names = VersionKeys.of(key)
        with telling_unavailable():
            at(self._client, names.tag).delete(names.config)


def _fields(spec: ModelSpec) -> dict[str, int]:
    # max_queue comes last: with it there is such a version.
    return {"job_ticket": int(spec.use_job_ticket), "max_queue": spec.job_queue_size}
