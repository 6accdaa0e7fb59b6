"""Register, describe and list in TorchServe's shapes."""

import shutil
import zipfile
from pathlib import Path

import pytest

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer


def _handler(word: str) -> dict[str, bytes | str]:
    return {"handler.py": f"def handle(data, context):\n    return [{word!r}] * len(data or [])\n"}


def _swap(link: Path, target: str) -> None:
    """Makes the link lead to another place at once, as Kubernetes does."""
    new = link.with_name("..data_tmp")
    new.symlink_to(target)
    new.rename(link)


@pytest.mark.slow
def test_archives_behind_links_of_the_operator_are_served(
    server: FerryServer, tmp_path: Path
) -> None:
    # Given a volume as Kubernetes mounts it, and a model's folder on another disk
    for generation, word in (("..2026_1", "old"), ("..2026_2", "new")):
        (server.store / generation).mkdir()
        make_archive(server.store / generation, "mounted", _handler(word))
    _swap(server.store / "..data", "..2026_1")
    (server.store / "mounted.mar").symlink_to("..data/mounted-1.0.mar")
    with zipfile.ZipFile(tmp_path / make_archive(tmp_path, "elsewhere", _handler("far"))) as files:
        files.extractall(tmp_path / "folder")
    (server.store / "elsewhere").symlink_to(tmp_path / "folder")

    # When / Then
    with server.model("mounted.mar", "mounted"), server.model("elsewhere", "elsewhere"):
        assert (server.predict("mounted").text, server.predict("elsewhere").text) == ("old", "far")

        # When the volume is updated, what was registered is served on
        _swap(server.store / "..data", "..2026_2")
        shutil.rmtree(server.store / "..2026_1")
        assert server.manage("PUT", "models/mounted", min_worker=2, synchronous="true").ok
        assert server.predict("mounted").text == "old"

    # Then the next registration finds the new archive
    with server.model("mounted.mar", "mounted"):
        assert server.predict("mounted").text == "new"

    # And a client's own words lead nowhere
    for url in (f"{tmp_path}/folder", "../folder", "..data/mounted-1.0.mar", "elsewhere/../x"):
        assert server.manage("POST", "models", url=url).status_code == 404
