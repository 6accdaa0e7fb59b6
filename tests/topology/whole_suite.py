"""The end-to-end tests on a cluster: FERRY_TEST_REDIS=cluster gives each server one of its own."""

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator

from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.topology.servers import Cluster

IS_ON_CLUSTER = os.environ.get("FERRY_TEST_REDIS") == "cluster"

# Tests that look into one server, with clients, counters or snapshots that a cluster does not have.
# What they are about is tested on a cluster by others of the same file, by tests/topology and end
# to end.
ON_ONE_SERVER = (
    "test_broker.py",
    "test_catalog.py",
    "test_e2e_restart.py",
    "test_redis_",
    "test_ingress_says_that_redis_refuses_its_password",
    "test_ingress_that_died_brings_nothing_back",
    "test_jobs_leave_a_part_of_the_memory_to_requests",
    "test_nothing_of_a_job_is_kept_when_memory_is_full",
    # `maxmemory` is one node's.
    "test_all_but_admission_goes_on_when_memory_is_full",
    "test_submit_is_refused_whole_when_memory_is_full",
    "test_submit_refuses_only_requests_whose_bodies_found_no_room",
    "test_submit_that_found_no_memory_keeps_no_slot",
    "test_what_was_measured_is_recorded_before_the_reply_is_there",
    "test_worker_replies_when_redis_does_not_know_the_scripts",
    # Snapshots and files of jobs are for the Redis that `ferry up` starts.
    "test_one_process_loads_and_saves_the_models",
    "test_up_brings_back_what_was_registered_when_it_was_killed",
)


def is_long() -> bool:
    """Returns whether this is the long form, `make topology`."""
    return os.environ.get("TOPOLOGY_LONG", "") == "1"


# Kept until the run ends and used again, emptied, once the server that had it has ended.
_lent: list[tuple[Cluster, Callable[[], bool]]] = []


def lend_cluster(has_ended: Callable[[], bool]) -> str:
    """Returns the URL of an empty cluster that no other server gets until `has_ended`."""
    for number, (cluster, is_free) in enumerate(_lent):
        if is_free():
            cluster.flush()
            _lent[number] = (cluster, has_ended)
            return cluster.url
    cluster = Cluster()
    atexit.register(cluster.close)
    _lent.append((cluster, has_ended))
    return cluster.url


@contextlib.contextmanager
def own_redis() -> Iterator[str]:
    """Starts a Redis for one test; yields its URL."""
    with Cluster() if IS_ON_CLUSTER else EmbeddedRedis(find_server()) as servers:
        yield servers.url
