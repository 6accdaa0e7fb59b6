"""`make images`: each image says what it is, has a list of its packages, and is not root's."""

import json
import re

import pytest

from tests.compose.stack import REGISTRY, run_in

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

LABEL = "org.opencontainers.image."


def inspected(image):
    [found] = json.loads(run_in(".", ["docker", "image", "inspect", image], {}, 30))
    return found


@pytest.mark.parametrize("target", ["ingress", "worker", "server", "bulk"])
def test_image_says_what_it_is_and_what_is_in_it(images, target, record_property):
    # Given
    folder, revision, lines = images.folder, images.revision, images.printed
    title, version = f"torchferry-{target}", images.version
    image = f"{REGISTRY}/{title}:{version}"
    [line] = [line for line in lines if line.startswith(f"{image}: ")]
    size, user, count, file = re.fullmatch(
        rf"{image}: ([\d,]+) MB, user (\d+), (\d+) Python packages in (\S+)", line
    ).groups()
    record_property(f"image `{target}` without torch", f"{size} MB")
    # When
    found = inspected(image)
    labels = found["Config"]["Labels"]
    description = labels.pop(f"{LABEL}description")
    # Then
    assert description.startswith(("torchferry ", "The ", "A node ", "Files "))
    assert labels == {
        f"{LABEL}title": title,
        f"{LABEL}version": version,
        f"{LABEL}revision": revision,
        f"{LABEL}licenses": "Apache-2.0",
        f"{LABEL}source": "https://git.example.com/team/torchferry.git",
    }
    assert int(user) > 0
    assert found["Config"]["User"] == user
    assert round(found["Size"] / 1e6) == int(size.replace(",", ""))
    # And the list names the image, and what is installed in it
    sbom = json.loads((folder / file).read_text())
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    about = sbom["metadata"]["component"]
    assert (about["name"], about["version"]) == (f"{title}-image", version)
    listed = {(one["name"], one["version"]) for one in sbom["components"]}
    assert len(listed) == int(count)
    listing = ["docker", "run", "--rm", "--entrypoint", "python", image]
    installed = run_in(".", [*listing, "-m", "pip", "list", "--format", "json"], {}, 60)
    assert {(one["name"], one["version"]) for one in json.loads(installed)} <= listed
    if target != "bulk":
        ferry = ["docker", "run", "--rm", "--entrypoint", "ferry", image, "--version"]
        said = run_in(".", ferry, {}, 60)
        assert said == f"ferry, version {version} (commit {revision})\n"
