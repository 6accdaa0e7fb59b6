"""Small model archives around the scripted handler, and the ledger that it writes."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HANDLER = Path(__file__).with_name("scripted_handler.py")


@dataclass(frozen=True)
class Call:
    """One call of the handler. `started_at` is on the clock of `time.monotonic`."""

    bodies: list[str]
    request_ids: list[str]
    started_at: float
    pid: int


class Ledger:
    """Reads what the handler's calls were, in order, over all worker processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def calls(self) -> list[Call]:
        # A line still being written has no newline yet.
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [Call(**json.loads(line)) for line in lines if line.endswith("\n")]

    def clear(self) -> None:
        self.path.write_text("")
        for gate in self.path.parent.glob(f"{self.path.name}.*go"):
            gate.unlink()

    def let_go(self, pid: int | None = None) -> None:
        """Lets `hold` end in all workers, or in this one."""
        name = f"{self.path}.go" if pid is None else f"{self.path}.{pid}.go"
        Path(name).touch()

    def executions(self, body: str) -> int:
        """Returns how many calls had this body in them."""
        return sum(call.bodies.count(body) for call in self.calls())


def manifest(model_name: str, version: str, handler: str, **more: str) -> str:
    model = {"modelName": model_name, "modelVersion": version, "handler": handler, **more}
    return json.dumps({"runtime": "python", "model": model, "archiverVersion": "0.12.0"})


def make_archive(
    store: Path,
    model_name: str,
    files: Mapping[str, bytes | str],
    *,
    version: str = "1.0",
    config: str = "",
    **model: str,
) -> str:
    """Writes `NAME-VERSION.mar` of these files, with a manifest; returns its name."""
    file_name = f"{model_name}-{version}.mar"
    config_file = {"configFile": "model-config.yaml"} if config else {}
    text = manifest(model_name, version, "handler.py", **config_file, **model)
    with zipfile.ZipFile(store / file_name, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", text)
        for path, content in files.items():
            archive.writestr(path, content)
        if config:
            archive.writestr("model-config.yaml", config)
    return file_name


def make_scripted(
    store: Path, model_name: str, *, version: str = "1.0", config: str = "", **extra_files: str
) -> tuple[str, Ledger]:
    """Writes an archive of the scripted handler; returns its name and its ledger."""
    ledger = Ledger(store / f"{model_name}-{version}.ledger")
    files = {"handler.py": HANDLER.read_text(encoding="utf-8"), "ledger": str(ledger.path)}
    files |= extra_files
    return make_archive(store, model_name, files, version=version, config=config), ledger
