"""Builds the images, each with its labels and a list of what is in it, and prints their sizes.

`make images` calls it, with any Python from 3.11 on. It needs Docker, and reads TORCH_INDEX,
TORCH_PACKAGES (Dockerfile) and IMAGE_REGISTRY, which goes in front of the images' names.
"""

import json
import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
SBOMS = ROOT / "build" / "sbom"
DESCRIPTIONS = {
    "ingress": "The HTTP part of torchferry: puts requests into a queue in Redis.",
    "worker": "A node of torchferry: runs PyTorch models on batches of requests.",
    "server": "torchferry in one container: the HTTP part, a node and a Redis.",
    "bulk": "Files and batches for torchferry.",
}
# CycloneDX's own tool looks at the Python that the image has, from an environment beside it, and
# checks what it writes against the format's schema.
LIST_PACKAGES = """
cat > /tmp/pyproject.toml
python -m venv --without-pip /tmp/sbom
python -m pip --python /tmp/sbom/bin/python install --quiet --no-compile 'cyclonedx-bom>=7,<8' >&2
/tmp/sbom/bin/cyclonedx-py environment --output-reproducible --output-format JSON \\
  --pyproject /tmp/pyproject.toml "$(command -v python)"
"""


def main() -> None:
    """Builds every image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    registry = os.environ.get("IMAGE_REGISTRY", "").rstrip("/")
    SBOMS.mkdir(parents=True, exist_ok=True)
    lines = []
    for target in DESCRIPTIONS:
        labels = labels_of(target, project)
        title, version = labels["title"], labels["version"]
        image = f"{registry}/{title}:{version}".lstrip("/")
        build(target, image, labels)
        sbom = SBOMS / f"{title}-{version}.cdx.json"
        sbom.write_text(packages_of(target, image, labels), encoding="utf-8")
        [found] = json.loads(output_of("docker", "image", "inspect", image))
        packages = len(json.loads(sbom.read_text(encoding="utf-8"))["components"])
        lines.append(
            f"{image}: {found['Size'] / 1e6:,.0f} MB, user {found['Config']['User']}, "
            f"{packages} Python packages in {sbom.relative_to(ROOT)}"
        )
    print(*lines, sep="\n")


def labels_of(target: str, project: Mapping[str, str]) -> dict[str, str]:
    """Returns the image's labels, without the prefix of the Open Container Initiative."""
    labels = {
        "title": f"torchferry-{target}",
        "description": DESCRIPTIONS[target],
        "version": project["version"],
        "licenses": project["license"],
        "revision": git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        "source": without_credentials(git("remote", "get-url", "origin")),
    }
    return {name: value for name, value in labels.items() if value}


def git(*words: str) -> str:
    """Returns what git says; empty where this is no repository, or has no such thing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):  # no git here, or it has no answer
        return ""
    return done.stdout.strip()


def without_credentials(remote: str) -> str:
    """Returns the address of a public remote; empty for any other, such as a folder."""
    parts = urlsplit(remote)
    if parts.scheme != "https":
        return ""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def build(target: str, image: str, labels: Mapping[str, str]) -> None:
    """Builds the image of a target of the Dockerfile."""
    words = ["--target", target, "--tag", image, "--file", "deploy/docker/Dockerfile"]
    for name in ("TORCH_INDEX", "TORCH_PACKAGES"):
        words += ["--build-arg", f"{name}={os.environ[name]}"] if name in os.environ else []
    words += ["--build-arg", f"COMMIT={labels.get('revision', '')}"]
    for name, value in labels.items():
        words += ["--label", f"org.opencontainers.image.{name}={value}"]
    subprocess.run(["docker", "build", *words, "."], cwd=ROOT, check=True)


def packages_of(target: str, image: str, labels: Mapping[str, str]) -> str:
    """Returns the image's Python packages, as CycloneDX's JSON."""
    project = {
        # Not the title alone: there is a Python package `torchferry-bulk`, too.
        "name": f"{labels['title']}-image",
        "version": labels["version"],
        "description": labels["description"],
        "license": labels["licenses"],
        "dependencies": ["torchferry-bulk" if target == "bulk" else "torchferry"],
    }
    described = "\n".join(f"{key} = {json.dumps(value)}" for key, value in project.items())
    words = ["docker", "run", "--rm", "--interactive", "--entrypoint", "sh", image]
    return output_of(*words, "-euc", LIST_PACKAGES, given=f"[project]\n{described}\n")


def output_of(*words: str, given: str = "") -> str:
    """Returns what the command prints; its complaints go where ours go."""
    done = subprocess.run(words, input=given, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
