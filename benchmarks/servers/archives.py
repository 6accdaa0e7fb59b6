"""Model archives, written so that TorchServe and torchferry both take them."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_archive(archive: Path, model: Mapping[str, str], *files: Path) -> None:
    """Writes an archive with these files and a manifest that says this of the model.

    Nothing is deflated: random weights would take long and save little.
    """
    manifest = {"runtime": "python", "model": dict(model), "archiverVersion": "0.12.0"}
    with zipfile.ZipFile(archive, "w") as entries:
        entries.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest, indent=2))
        for file in files:
            entries.write(file, file.name)
