"""Pods of the chart on a Docker engine: a manifest's container, as `docker run` takes it.

There is no cluster here. Docker gives a container the user, the rights, the files, the variables
and the memory that a kubelet would; probes are asked for by hand.
"""

import contextlib
import io
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from tests.compose.stack import COMMAND_S, run_in
from tests.deploy.chart import quantity
from tests.support import came_true

Manifest = Mapping[str, Any]


class Pod:
    """One container of a Deployment or StatefulSet, running."""

    def __init__(self, name: str, container: Manifest, grace_s: int) -> None:
        self.name = name
        self.container = container
        self.grace_s = grace_s

    def execute(self, *words: str) -> str:
        """Runs the command as `kubectl exec` does; asserts that it succeeds; returns its output."""
        return docker("exec", self.name, *words)

    def copy(self, folder: str, file_name: str, content: bytes) -> None:
        """Puts a file there as `kubectl cp` does: by the container's own tar."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo(file_name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        words = ["docker", "exec", "--interactive", self.name, "tar", "-xmf", "-", "-C", folder]
        subprocess.run(words, input=packed.getvalue(), check=True, timeout=COMMAND_S)

    def passes(self, probe: str) -> bool:
        """Asks the container's probe of this kind, once."""
        asked = self.container[f"{probe}Probe"]
        if "exec" in asked:
            words = asked["exec"]["command"]
        else:
            get = asked["httpGet"]
            [port] = [p for p in self.container["ports"] if p["name"] == get["port"]]
            url = f"http://127.0.0.1:{port['containerPort']}{get['path']}"
            words = ["python", "-c", f"import urllib.request as u; u.urlopen({url!r})"]
        done = subprocess.run(
            ["docker", "exec", self.name, *words], capture_output=True, check=False, timeout=30
        )
        return done.returncode == 0

    def wait_ready(self) -> None:
        """Waits until it is ready; a pod that is ready must be alive, too."""
        assert came_true(lambda: self.passes("readiness"), 60), self.logs()
        assert self.passes("liveness")

    def logs(self) -> str:
        done = subprocess.run(
            ["docker", "logs", self.name], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout + done.stderr

    def end(self) -> int:
        """Ends it as a kubelet does; returns its exit code."""
        docker("stop", "--time", str(self.grace_s), self.name)
        return int(docker("inspect", "--format", "{{.State.ExitCode}}", self.name))


class Machine:
    """A network with the pods that were started in it, and their claims."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.name = f"ferry-pods-test-{uuid.uuid4().hex[:8]}"
        # What a Secret has, by its key.
        self.secrets = secrets
        self._pods: list[str] = []
        self._volumes: set[str] = set()

    def start(self, workload: Manifest, service: str) -> Pod:
        """Starts a pod of this Deployment or StatefulSet, which the network knows by that name."""
        spec = workload["spec"]["template"]["spec"]
        [container] = spec["containers"]
        name = f"{self.name}-{len(self._pods)}"
        words = ["--detach", "--name", name, "--network", self.name]
        words += ["--network-alias", service, *self._rights(spec, container)]
        words += self._files(spec, container) + self._variables(container)
        command = [*container.get("command", []), *container.get("args", [])]
        if "command" in container:
            words += ["--entrypoint", command.pop(0)]
        self._pods.append(name)
        docker("run", *words, container["image"], *command)
        return Pod(name, container, spec["terminationGracePeriodSeconds"])

    def _rights(self, spec: Manifest, container: Manifest) -> list[str]:
        pod, own = spec["securityContext"], container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        dropped = [word for right in own["capabilities"]["drop"] for word in ("--cap-drop", right)]
        memory = int(quantity(container["resources"]["limits"]["memory"]))
        return [
            *("--user", f"{pod['runAsUser']}:{pod['runAsGroup']}"),
            *("--group-add", str(pod["fsGroup"]), "--read-only"),
            *("--security-opt", "no-new-privileges", "--memory", str(memory), *dropped),
        ]

    def _files(self, spec: Manifest, container: Manifest) -> list[str]:
        empty = {volume["name"] for volume in spec.get("volumes", []) if "emptyDir" in volume}
        words = []
        for mount in container["volumeMounts"]:
            path = mount["mountPath"]
            if mount["name"] in empty:
                # Its group may write there, as with the pod's fsGroup.
                group = spec["securityContext"]["fsGroup"]
                words += ["--tmpfs", f"{path}:exec,mode=2777,gid={group}"]
            else:
                volume = f"{self.name}-{mount['name']}"
                self._volumes.add(volume)
                words += ["--volume", f"{volume}:{path}"]
        return words

    def _variables(self, container: Manifest) -> list[str]:
        words = []
        for variable in container.get("env", []):
            if "value" in variable:
                value = variable["value"]
            else:
                value = self.secrets[variable["valueFrom"]["secretKeyRef"]["key"]]
            words += ["--env", f"{variable['name']}={value}"]
        return words

    @contextlib.contextmanager
    def running(self) -> Iterator["Machine"]:
        """Removes all that was started, in the end."""
        docker("network", "create", self.name)
        try:
            yield self
        finally:
            if self._pods:
                docker("rm", "--force", "--volumes", *self._pods)
            if self._volumes:
                docker("volume", "rm", *sorted(self._volumes))
            docker("network", "rm", self.name)


def docker(*words: str) -> str:
    return run_in(".", ["docker", *words], {}, COMMAND_S)
