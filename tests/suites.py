"""Which tests `make test` leaves to `make test-all`, and which ones are in `make test-fast`.

`make test` shows that the ordinary promises hold, on real servers, in some six minutes on two
cores. What takes long, or concerns few users, is marked `long` here.
"""

LONG_FOLDERS = frozenset({"compose", "deploy", "network", "topology"})
LONG_FILES = frozenset(
    {
        # Faults: `make test` keeps those of workers, of cut connections and of the state machine.
        "test_chaos_arena.py",
        "test_chaos_buffers.py",
        "test_chaos_clients.py",
        "test_chaos_fuzz.py",
        "test_chaos_jobs.py",
        "test_chaos_redis.py",
        "test_chaos_registry.py",
        "test_chaos_stop.py",
        "test_chaos_storm.py",
        # Whole servers.
        "test_e2e_arena.py",
        "test_e2e_batching.py",
        "test_e2e_bench.py",
        "test_e2e_cli.py",
        "test_e2e_container.py",
        "test_e2e_files_without_code.py",
        "test_e2e_check.py",
        "test_e2e_handler_metrics.py",
        "test_e2e_handler_processes.py",
        "test_e2e_ingress_processes.py",
        "test_e2e_outputs.py",
        "test_e2e_page.py",
        "test_e2e_reload.py",
        "test_e2e_resnet.py",
        "test_e2e_restart.py",
        "test_e2e_stop.py",
        "test_e2e_torchserve.py",
        "test_e2e_wheel.py",
        "test_e2e_wsgi.py",
        "test_readme.py",
        # Slow, and beside the request's way.
        "test_bulk_wheel.py",
        "test_client_wheel.py",
        "test_control_queue.py",
        "test_deferred_compiler.py",
        "test_digits_example.py",
        "test_doctor_of_torchserve.py",
        "test_installer.py",
        "test_openapi_fuzz.py",
        "test_user_types.py",
        "test_weights.py",
    }
)
# The scripts' tests show on a cluster that all keys of a script share one slot. The store's other
# tests repeat that there in `make test-all`.
CLUSTER_FOLDER = "scripts"


def is_long_file(path):
    """Returns whether `make test` leaves out all tests of this file, or folder."""
    return not LONG_FOLDERS.isdisjoint((path.name, path.parent.name)) or path.name in LONG_FILES


def is_long(path, parameters):
    """Returns whether `make test` leaves this test out.

    Args:
        path: the test's file.
        parameters: the values that it is parametrized with, by name.
    """
    if is_long_file(path):
        return True
    return parameters.get("store_backend") == "cluster" and path.parent.name != CLUSTER_FOLDER


FAST_FOLDERS = ("tests/architecture", "tests/unit/batching", "tests/unit/ingress/torchserve")
# Servers, and tests that wait for time to pass.
REAL_FIXTURES = frozenset({"real_backend", "real_harness", "redis_server", "on_cluster"})
WAITING_FILES = frozenset({"test_broker.py", "test_refusing_server.py", "test_channel.py"})


def is_fast(path, parameters, fixtures):
    """Returns whether the test runs in `make test-fast`: on one server of Redis at most.

    Args:
        path: the test's file.
        parameters: the values that it is parametrized with, by name.
        fixtures: the names of the fixtures that it uses.
    """
    if not any(folder in path.as_posix() for folder in FAST_FOLDERS) or path.name in WAITING_FILES:
        return False
    if parameters.get("store_backend", "server") != "server":
        return False
    return "store_backend" in parameters or not REAL_FIXTURES & set(fixtures)
