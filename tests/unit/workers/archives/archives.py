"""Archives for tests, good and bad."""

import io
import json
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

MANIFEST = {
    "createdOn": "20/11/2026 10:00:00",
    "runtime": "python",
    "model": {
        "modelName": "echo",
        "modelVersion": "2.1",
        "handler": "echo.py:handle",
        "configFile": "model-config.yaml",
    },
}
FILES = {
    "echo.py": b"def handle(data, context): return data\n",
    "model-config.yaml": b"batchSize: 4",
}


def write_zip(path, files=FILES, manifest=MANIFEST):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
        if manifest is not None:
            text = manifest if isinstance(manifest, str) else json.dumps(manifest)
            bundle.writestr("MAR-INF/MANIFEST.json", text)
    return path


def write_tar(path, files=FILES, manifest=MANIFEST, top="", mode="w:gz"):
    with tarfile.open(path, mode) as bundle:
        for name, content in {**files, "MAR-INF/MANIFEST.json": json.dumps(manifest)}.items():
            octets = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(top + name)
            entry.size = len(octets)
            bundle.addfile(entry, io.BytesIO(octets))
    return path


def tar_of_a_folder(path):
    """As `tar czf` makes it of `.`, which is its first entry."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path, "w:gz") as bundle:
        bundle.add(write_folder(Path(folder)), ".")
    return path


def write_folder(path, files=FILES, manifest=MANIFEST):
    for name, content in {**files, "MAR-INF/MANIFEST.json": json.dumps(manifest)}.items():
        place = path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_linked_zip(path, target):
    with zipfile.ZipFile(path, "w") as bundle:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        bundle.writestr(entry, target)
    return path


def write_special_tar(path, kind):
    with tarfile.open(path, "w:gz") as bundle:
        entry = tarfile.TarInfo("special")
        entry.type = kind
        entry.linkname = "/etc/passwd"
        bundle.addfile(entry)
    return path


def everything_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
