"""The composed server: `docker compose` in a copy of the repository, and what runs of it."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.chaos.crowd import Crowd
from tests.e2e.archives import make_archive
from tests.ports import free_ports
from tests.support import came_true

ROOT = Path(__file__).parents[2]
HANDLER = Path(__file__).with_name("pausing_handler.py")
# Always the same, so that a second run finds the images of the first one.
PROJECT = "ferry-compose-test"
FILES = ("docker-compose.yml", "tests/compose/docker-compose.test.yml")
BUILD_S = 480.0
COMMAND_S = 120.0
HTTP_S = 30.0
PROFILES = {"COMPOSE_PROFILES": "balanced,monitoring"}
# For the build of the workers' image: the tests' models need no torch.
SMALL_WORKER = {"TORCH_PACKAGES": ""}
# Where nothing else has images of the same name.
REGISTRY = "localhost/ferry-compose-test"
REMOTE = "https://me:secret@git.example.com/team/torchferry.git"
COMMIT = """
git init --quiet
git remote add origin "$REMOTE"
git add --all
git -c user.name=me -c user.email=me@example.com commit --quiet --message "As it is"
git rev-parse HEAD
"""


def run_in(
    folder: Path, words: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> str:
    """Runs the command in the folder; asserts that it succeeds; returns what it prints."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def engine_missing() -> str:
    """Returns why there is no Docker engine with compose here; empty when there is one."""
    if compose_command() is None:
        return "no Docker Compose: install docker-compose or the docker compose plugin"
    done = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30)
    return "" if done.returncode == 0 else "no Docker engine answers `docker info`"


def compose_command() -> list[str] | None:
    """Returns `docker compose` where there is the plugin, else `docker-compose`."""
    if shutil.which("docker") is None:
        return None
    probe = ["docker", "compose", "version"]
    if subprocess.run(probe, capture_output=True, check=False, timeout=30).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


@dataclass(frozen=True)
class Container:
    """What the engine says of a container."""

    name: str
    state: Mapping[str, Any]
    config: Mapping[str, Any]
    host_config: Mapping[str, Any]
    network: Mapping[str, Any]

    @property
    def service(self) -> str:
        return str(self.config["Labels"]["com.docker.compose.service"])

    @property
    def published(self) -> Mapping[str, list[dict[str, str]]]:
        """Port as `8080/tcp` -> where of this machine it is."""
        return {port: places for port, places in self.network["Ports"].items() if places}

    @property
    def health(self) -> str:
        return str(self.state.get("Health", {}).get("Status", "none"))

    @property
    def is_confined(self) -> bool:
        """Returns whether it may do as little as a container of ours should."""
        host = self.host_config
        return (
            str(self.config["User"]).partition(":")[0] not in ("", "0", "root")
            and host["ReadonlyRootfs"]
            and host["CapDrop"] == ["ALL"]
            and "no-new-privileges:true" in host["SecurityOpt"]
            and host["Memory"] > 0
        )

    def port(self, number: int) -> int:
        """Returns where this port of the container is published on loopback."""
        return int(self.published[f"{number}/tcp"][0]["HostPort"])


class Stack:
    """One project of the engine, on ports of its own, from a fresh copy of the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        copy_repository(self.folder)
        self.port = free_ports(5)
        self.prometheus_port = self.port + 3
        self.inference = f"http://127.0.0.1:{self.port}"
        self.management = f"http://127.0.0.1:{self.port + 1}"
        self.http = requests.Session()
        self.http.trust_env = False
        self.environment = {
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_FILE": os.pathsep.join(FILES),
            "COMPOSE_HTTP_TIMEOUT": str(int(COMMAND_S)),
            "INFERENCE_PORT": str(self.port),
            "MANAGEMENT_PORT": str(self.port + 1),
            "METRICS_PORT": str(self.port + 2),
            "BALANCER_PORT": str(self.port),
            "BALANCER_MANAGEMENT_PORT": str(self.port + 1),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "GRAFANA_PORT": str(self.prometheus_port + 1),
            **SMALL_WORKER,
        }

    # --- commands

    def compose(
        self, *words: str, timeout_s: float = COMMAND_S, env: Mapping[str, str] | None = None
    ) -> str:
        """Returns what `docker compose` prints."""
        return self.run([*(compose_command() or []), *words], timeout_s, env)

    def scale(self, workers: int) -> None:
        """Runs so many workers, and waits until all are healthy."""
        self.compose("up", "-d", "--scale", f"worker={workers}")
        self.wait_healthy()
        assert len(self.containers("worker")) == workers

    def restore(self) -> None:
        """Goes back to Redis, one ingress and one worker, without a model."""
        self.compose("rm", "-s", "-f", "balancer", "prometheus", "grafana", env=PROFILES)
        self.scale(1)
        for model in self.http.get(f"{self.management}/models", timeout=HTTP_S).json()["models"]:
            self.unregister(model["modelName"])

    def close(self) -> None:
        """Stops everything; leaves no container, network or volume."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "1", env=PROFILES)

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "40", env=PROFILES)

    def run(
        self,
        words: Sequence[str],
        timeout_s: float = COMMAND_S,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Runs the command in the repository; asserts that it succeeds; returns what it prints."""
        return run_in(self.folder, words, {**self.environment, **(env or {})}, timeout_s)

    # --- containers

    def containers(self, *services: str) -> list[Container]:
        """Returns the containers of these services, or all, by name."""
        label = f"label=com.docker.compose.project={PROJECT}"
        ids = self.run(["docker", "ps", "-aq", "--filter", label]).split()
        if not ids:
            return []
        found = json.loads(self.run(["docker", "inspect", *ids]))
        containers = [
            Container(
                name=record["Name"].lstrip("/"),
                state=record["State"],
                config=record["Config"],
                host_config=record["HostConfig"],
                network=record["NetworkSettings"],
            )
            for record in found
        ]
        chosen = [one for one in containers if not services or one.service in services]
        return sorted(chosen, key=lambda container: container.name)

    def wait_healthy(self) -> None:
        """Waits until every container that has a health check passes it."""

        def sick() -> list[str]:
            return [
                f"{container.name}: {container.health} {container.state['Status']}"
                for container in self.containers()
                if container.health not in ("healthy", "none")
            ]

        assert came_true(lambda: not sick(), 60), (sick(), self.logs())

    def image_bytes(self, name: str) -> int:
        return int(self.run(["docker", "image", "inspect", "-f", "{{.Size}}", name]))

    # --- models

    def serve(self, model_name: str, *, pause_ms: int = 0, batch_size: int = 4) -> None:
        """Serves a model whose handler echoes after a pause per batch, one worker per node."""
        folder = self.folder / "model_store"
        folder.mkdir(exist_ok=True)
        files = {"handler.py": HANDLER.read_text(encoding="utf-8"), "pause_ms": str(pause_ms)}
        archive = make_archive(folder, model_name, files, config="jobQueueSize: 5000")
        (worker, *_) = self.containers("worker")
        self.run(["docker", "cp", str(folder / archive), f"{worker.name}:/model-store/{archive}"])
        query = {
            "url": archive,
            "initial_workers": 1,
            "batch_size": batch_size,
            "max_batch_delay": 5,
        }
        answer = self.http.post(f"{self.management}/models", params=query, timeout=HTTP_S)
        assert answer.status_code == 200, answer.text

    def unregister(self, model_name: str) -> None:
        answer = self.http.delete(f"{self.management}/models/{model_name}", timeout=HTTP_S)
        assert answer.status_code == 200, answer.text

    def describe(self, model_name: str, management: str = "") -> dict[str, Any]:
        url = f"{management or self.management}/models/{model_name}"
        record = self.http.get(url, timeout=HTTP_S).json()[0]
        return dict(record)

    def wait_workers(self, model_name: str, count: int) -> None:
        def ready() -> int:
            workers = self.describe(model_name)["workers"]
            return sum(worker["status"] == "READY" for worker in workers)

        assert came_true(lambda: ready() == count, 30), self.describe(model_name)

    def rate(self, model_name: str, requests_count: int) -> float:
        """Sends so many requests at once; asserts all 200; returns answers per second."""
        with Crowd(self.port) as crowd:
            sent = crowd.ask(model_name, [f"rate {n}" for n in range(requests_count)])
        assert {one.status for one in sent} == {200}, {(one.status, one.fault) for one in sent}
        return requests_count / (
            max(one.answered_at for one in sent) - min(one.sent_at for one in sent)
        )


@dataclass(frozen=True)
class MadeImages:
    """Holds what `make images` did in a copy of the repository that is one commit."""

    folder: Path
    version: str
    revision: str
    printed: list[str]

    @classmethod
    def make(cls, folder: Path) -> "MadeImages":
        copy_repository(folder)
        revision = run_in(folder, ["bash", "-euc", COMMIT], {"REMOTE": REMOTE}, COMMAND_S)
        words = ["make", "images", f"IMAGE_REGISTRY={REGISTRY}", f"PYTHON={sys.executable}"]
        printed = run_in(folder, words, SMALL_WORKER, BUILD_S)
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return cls(folder, project["version"], revision.strip(), printed.splitlines())


def copy_repository(folder: Path) -> None:
    """Copies what a clone of this working tree would hold."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(
        listing, cwd=ROOT, capture_output=True, check=True, text=True, timeout=30
    )
    for name in filter(None, names.stdout.split("\0")):
        source = ROOT / name
        if source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
