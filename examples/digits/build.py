"""Trains the network and packs it with its handler into `digits.mar`.

    python -m examples.digits.build --model-store model_store

does nothing when the archive is newer than everything it is made of.
"""

import argparse
import json
import sys
import tempfile
import zipfile
from pathlib import Path

from examples.digits import train

HERE = Path(__file__).parent
ARCHIVE = "digits.mar"
MANIFEST = {
    "runtime": "python",
    "model": {
        "modelName": "digits",
        "modelVersion": "1.0",
        "handler": "handler.py",
        "modelFile": "model.py",
        "serializedFile": "digits.pt",
    },
    "archiverVersion": "0.12.0",
}


def is_current(archive: Path) -> bool:
    """Returns whether the archive exists and is newer than each file of this folder."""
    if not archive.exists():
        return False
    newest = max(source.stat().st_mtime for source in HERE.glob("*.py"))
    return archive.stat().st_mtime > newest


def build(model_store: Path) -> Path:
    """Makes sure of a current `digits.mar` in the folder and returns its path; may train first.

    A server that reads the folder meanwhile sees the old archive or the new one, never a part.
    """
    archive = model_store / ARCHIVE
    if is_current(archive):
        return archive
    model_store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=model_store, prefix=".digits-") as folder:
        weights = train.save(train.train(), Path(folder))
        unfinished = Path(folder, ARCHIVE)
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as target:
            target.writestr("MAR-INF/MANIFEST.json", json.dumps(MANIFEST, indent=2))
            for source in (HERE / "handler.py", HERE / "model.py", weights):
                target.write(source, source.name)
        unfinished.replace(archive)
    return archive


def main() -> int:
    """Builds the archive; returns the exit code."""
    parser = argparse.ArgumentParser(description="Builds digits.mar.")
    parser.add_argument("--model-store", type=Path, default=Path("model_store"))
    model_store: Path = parser.parse_args().model_store
    was_current = is_current(model_store / ARCHIVE)
    print(f"{build(model_store)} {'is current' if was_current else 'built'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
