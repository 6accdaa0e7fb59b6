"""Runs TorchServe for a recording. Needs Java and, the first time, a package index.

TorchServe is installed into an environment of its own under `.bench/`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.servers.child import Child, free_ports
from benchmarks.servers.installed import torchserve_python
from tests.support import eventually

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0


@contextmanager
def torchserve(
    folder: Path, config: str, environment: Mapping[str, str] | None = None
) -> Iterator[dict[str, int]]:
    """Runs TorchServe over `folder/store` with this configuration; gives its ports by name."""
    names = ("inference", "management", "metrics", "grpc_inference", "grpc_management")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    lines = [f"{name}_address=http://127.0.0.1:{ports[name]}" for name in names[:3]]
    lines += [f"{name}_port={ports[name]}" for name in names[3:]]
    lines += [f"model_store={folder / 'store'}", ""]
    (folder / "config.properties").write_text("\n".join([config, *lines]))
    words = "-m ts.model_server --start --foreground --ncs --ts-config config.properties"
    command = [str(torchserve_python()), *words.split()]
    places = dict.fromkeys(("TEMP", "TMPDIR", "LOG_LOCATION", "METRICS_LOCATION"), str(folder))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TS_")}
    child = Child(command, {**inherited, **places, **(environment or {})}, folder)
    child.start()
    try:
        log = folder / "server.log"
        eventually(
            lambda: "Model server started" in log.read_text(errors="replace"), START_TIMEOUT_S
        )
        yield ports
    except BaseException:
        Console().print(child.log_tail(), markup=False, highlight=False)
        raise
    finally:
        child.stop(whole_group=True)
