"""What the containers are and may do."""

import subprocess

import pytest

from tests.compose.stack import PROJECT

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

OUR_SERVICES = ("redis", "ingress", "worker")
BASE = "python:3.11-slim-bookworm"
MAX_INGRESS_BYTES = 250 * 1000**2


def execute(container, *words):
    return subprocess.run(
        ["docker", "exec", container.name, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def image_of(container):
    return container.config["Image"]


def test_ingress_image_is_small_and_has_no_torch(stack):
    # Given
    (ingress,) = stack.containers("ingress")
    # When
    added = stack.image_bytes(image_of(ingress)) - stack.image_bytes(BASE)
    # Then
    assert 0 < added < MAX_INGRESS_BYTES
    assert execute(ingress, "python", "-c", "import torch").returncode != 0
    assert execute(ingress, "python", "-c", "import flask").returncode == 0


def test_containers_run_without_privileges_on_a_file_system_they_cannot_change(stack):
    for container in stack.containers(*OUR_SERVICES):
        # When
        user = execute(container, "id", "-u").stdout.strip()
        writing = execute(container, "touch", "/etc/mark", "/usr/mark", "/mark")
        # Then
        assert user.isdigit(), container.name
        assert int(user) > 0, container.name
        assert writing.stderr.count("Read-only file system") == 3, (container.name, writing.stderr)
        assert container.is_confined, container.name


def test_code_is_nothing_that_its_user_can_change(stack):
    for container in stack.containers("ingress", "worker"):
        # When
        program = "import ferry; print(ferry.__file__)"
        path = execute(container, "python", "-P", "-c", program).stdout.strip()
        # Then
        assert path.startswith("/usr/local/"), (container.name, path)
        assert execute(container, "test", "-O", path).returncode != 0, container.name


def test_any_user_of_the_root_group_may_write_where_archives_are(stack):
    # Given a user that the image does not know, as OpenShift chooses one; and new volumes
    confinement = ["--user", "1000680000:0", "--read-only", "--cap-drop", "ALL"]
    for container in stack.containers("ingress", "worker"):
        folders = ["/model-store", "/unpacked"]
        volumes = [word for folder in folders for word in ("--volume", folder)]
        marks = [f"{folder}/mark" for folder in folders]
        image = image_of(container)
        # When
        done = subprocess.run(
            ["docker", "run", "--rm", *confinement, *volumes, image, "touch", *marks],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        # Then
        assert done.returncode == 0, (container.name, done.stderr)


def test_only_inference_is_published_beyond_loopback(stack):
    # When
    published = {
        (container.service, port): {place["HostIp"] for place in places}
        for container in stack.containers()
        for port, places in container.published.items()
    }
    # Then
    assert published == {
        ("ingress", "8080/tcp"): {"0.0.0.0"},
        ("ingress", "8081/tcp"): {"127.0.0.1"},
        ("ingress", "8082/tcp"): {"127.0.0.1"},
    }


def test_redis_is_reached_by_no_other_network(stack):
    # Given
    (redis,) = stack.containers("redis")
    # When
    listing = subprocess.run(
        ["docker", "network", "inspect", f"{PROJECT}_queue", "-f", "{{.Internal}}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    # Then
    assert set(redis.network["Networks"]) == {f"{PROJECT}_queue"}
    assert listing.stdout.strip() == "true"
