"""Model archives, written so that TorchServe and torchferry both take them."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_archive(
    archive: Path, model: Mapping[str, str], *files: Path, is_deflated: bool = False
) -> None:
    """Writes an archive with these files and a manifest that says this of the model.

    By default nothing is deflated: random weights take long and save little.
    """
    manifest = {"runtime": "python", "model": dict(model), "archiverVersion": "0.12.0"}
    method = zipfile.ZIP_DEFLATED if is_deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(archive, "w", method) as entries:
        entries.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest, indent=2))
        for file in files:
            entries.write(file, file.name)
