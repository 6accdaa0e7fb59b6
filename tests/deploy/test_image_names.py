"""What `make images` builds is what Compose, the chart and KServe's runtime take."""

import re
import runpy

import pytest
import yaml

from tests.deploy.chart import CHART, ROOT

IMAGES = runpy.run_path(str(ROOT / "deploy/docker/images.py"))
NAMES = {f"torchferry-{target}" for target in IMAGES["DESCRIPTIONS"]}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_every_target_of_the_dockerfile_that_is_run_is_an_image():
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    stages = re.split(r"^FROM \S+ AS (\w+)$", text, flags=re.MULTILINE)[1:]
    run = {name for name, body in zip(stages[::2], stages[1::2], strict=True) if "\nCMD" in body}
    assert run == IMAGES["DESCRIPTIONS"].keys()
    # And its user is a number, by which Kubernetes sees that it is not root
    assert len(re.findall(r"^USER [1-9]\d*$", text, re.MULTILINE)) == len(run)


def test_compose_takes_from_a_registry_what_it_builds():
    # Given
    services = yaml.safe_load((ROOT / "docker-compose.registry.yml").read_text())["services"]
    built = {name for name, service in COMPOSE.items() if "build" in service}
    # Then
    assert services.keys() == built
    for name, service in services.items():
        title = f"torchferry-{COMPOSE[name]['build']['target']}"
        assert title in NAMES
        image = re.sub(r"\$\{(\w+):\?[^}]+\}", r"{\1}", service["image"])
        assert image == f"{{IMAGE_REGISTRY}}/{title}:{{IMAGE_TAG}}"


def test_chart_and_runtime_take_images_of_these_names():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    runtime = yaml.safe_load((ROOT / "deploy/kserve/runtime.yaml").read_text())
    [container] = runtime["spec"]["containers"]
    taken = {values[part]["image"]["repository"] for part in ("ingress", "worker")}
    assert taken | {container["image"].partition(":")[0]} <= NAMES


@pytest.mark.parametrize(
    ("remote", "source"),
    [
        (
            "https://git.example.com/team/torchferry.git",
            "https://git.example.com/team/torchferry.git",
        ),
        ("https://me:secret@git.example.com:8443/team", "https://git.example.com:8443/team"),
        ("git@git.example.com:team/torchferry.git", ""),
        ("/home/me/torchferry", ""),
        ("", ""),
    ],
)
def test_label_of_the_source_is_an_address_without_a_password(remote, source):
    assert IMAGES["without_credentials"](remote) == source
