"""The store's tests on a cluster: keys are looked at with redis-py's own cluster client."""

from typing import Any

from batching.store.clients import connect, connect_async
from tests.support import Backend
from tests.topology.servers import Cluster


def cluster_backend(cluster: Cluster, admin: Any) -> Backend:
    """Empties the cluster, and gives it its default settings."""
    cluster.flush()
    return Backend(
        client=admin,
        connect=lambda: connect(cluster.url),
        connect_async=lambda: connect_async(cluster.url),
        url=cluster.url,
    )
