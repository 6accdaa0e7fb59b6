"""What handlers do to their folders harms no later worker, no other model and no other node."""

import os
import subprocess
import sys

import pytest

from batching.errors import InvalidModel
from batching.settings.settings import Settings
from tests.support import make_spec
from tests.unit.workers.archives.archives import MANIFEST, write_folder, write_zip
from workers.archives.model_archive import hash_archive, inspect_archive
from workers.archives.model_files import ModelFiles

FILES = {
    "echo.py": b"def handle(data, context): return data\n",
    "weights.pt": b"0123456789",
    "vocabulary/words": b"one two",
    "model-config.yaml": b"batchSize: 4",
}


@pytest.fixture
def node(tmp_path):
    """Makes nodes of one model store: each with a work folder of this name."""
    (tmp_path / "store").mkdir()

    def make(name="work"):
        return ModelFiles(Settings(work_dir=tmp_path / name, model_store=tmp_path / "store"))

    return make


@pytest.fixture
def path(node, tmp_path):
    return write_zip(tmp_path / "store" / "echo.mar", FILES)


def spec_of(path, name="echo"):
    return make_spec(model_name=name, model_url=path.name, archive_sha256=hash_archive(path))


def content_of(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def rewrite(folder):
    (folder / "weights.pt").write_bytes(b"9876543210")


def put_another(folder):
    (folder / "new").write_bytes(b"9876543210")
    before = (folder / "weights.pt").stat()
    os.utime(folder / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "new").rename(folder / "weights.pt")


CHANGES = {
    "renamed": lambda folder: (folder / "weights.pt").rename(folder / "model.pt"),
    "folder renamed": lambda folder: (folder / "vocabulary").rename(folder / "words"),
    "removed": lambda folder: (folder / "weights.pt").unlink(),
    "truncated": lambda folder: os.truncate(folder / "weights.pt", 5),
    "rewritten": rewrite,
    "replaced": put_another,
    "linked": lambda folder: (
        (folder / "weights.pt").rename(folder / "model.pt"),
        (folder / "weights.pt").symlink_to("model.pt"),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_model_is_unpacked_again_after_its_handler_has_changed_a_file(change, node, path):
    # Given
    first = (await node().prepare(spec_of(path))).model_dir
    change(first)
    # When the next worker starts, here or after a restart of the node
    second = (await node().prepare(spec_of(path))).model_dir
    # Then
    assert content_of(second) == FILES
    # and the changed one, which nobody uses, takes no room
    assert [place.name for place in second.parent.parent.iterdir()] == [second.parent.name]


async def test_unpacked_model_is_used_again_as_long_as_it_is_whole(node, path):
    # Given a cache beside the model's files, as Python and handlers write them
    first = (await node().prepare(spec_of(path))).model_dir
    (first / "__pycache__").mkdir()
    (first / "__pycache__" / "echo.pyc").touch()
    before = (first / "weights.pt").stat()
    assert (await node().prepare(spec_of(path), is_exact=True)).model_dir == first
    (first / "cache").write_bytes(b"slowly made")
    # When
    second = (await node().prepare(spec_of(path))).model_dir
    # Then
    assert (second / "cache").read_bytes() == b"slowly made"
    assert os.path.samestat((second / "weights.pt").stat(), before)

    # And when a worker failed to load with it
    third = (await node().prepare(spec_of(path), is_exact=True)).model_dir
    # Then
    assert sorted(place.name for place in third.iterdir()) == [
        "MAR-INF",
        "echo.py",
        "model-config.yaml",
        "vocabulary",
        "weights.pt",
    ]


async def test_handlers_of_two_models_of_one_archive_do_not_share_a_folder(node, path):
    # Given
    one = (await node().prepare(spec_of(path, "one"))).model_dir
    other = (await node().prepare(spec_of(path, "other"))).model_dir
    # When
    rewrite(one)
    (one / "echo.py").unlink()
    # Then
    assert content_of(other) == FILES
    assert (await node().prepare(spec_of(path, "other"))).model_dir == other


HOLDING = """
import sys
from pathlib import Path
from workers.archives.staging import hold

hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


async def test_changed_folder_stays_as_long_as_a_worker_lives_in_it(node, path, tmp_path):
    # Given
    first = (await node().prepare(spec_of(path))).model_dir
    command = [sys.executable, "-c", HOLDING, first]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as worker:
        assert worker.stdout.readline() == b"held\n"
        rewrite(first)
        # When
        second = (await node().prepare(spec_of(path))).model_dir
        os.utime(first.parent, (0, 0))
        node().sweep([])
        # Then
        assert second != first
        assert content_of(second) == FILES
        assert (first / "weights.pt").read_bytes() == b"9876543210"
        assert (await node().prepare(spec_of(path))).model_dir == second
        worker.communicate()

    # And it goes after that
    third = (await node().prepare(spec_of(path))).model_dir
    assert content_of(third) == FILES
    assert (tmp_path / "work").is_dir()


async def test_registration_unpacks_for_the_first_worker_and_no_second_time(node, path, tmp_path):
    # Given
    work_dir = tmp_path / "work"
    info = inspect_archive(path, path.name, work_dir)
    [unpacked] = work_dir.iterdir()
    before = (unpacked / "model" / "weights.pt").stat()
    # When
    model_dir = (await node().prepare(spec_of(path))).model_dir
    # Then
    assert os.path.samestat((model_dir / "weights.pt").stat(), before)
    assert [*work_dir.iterdir()] == [model_dir.parent]

    # And another registration only hashes it
    assert inspect_archive(path, path.name, work_dir) == info
    assert [*work_dir.iterdir()] == [model_dir.parent]


def folder_in(tmp_path):
    model = {**MANIFEST["model"], "serializedFile": "weights.pt"}
    return write_folder(tmp_path / "store" / "echo", FILES, {**MANIFEST, "model": model})


async def test_folder_in_the_store_serves_on_each_node_whatever_its_handler_writes_there(
    node, tmp_path
):
    # Given a folder that is registered, and serves on one node
    path = folder_in(tmp_path)
    spec = spec_of(path)
    first = (await node().prepare(spec)).model_dir
    # When its handler writes beside the model's files
    (first / "cache").mkdir()
    (first / "cache" / "kernels").write_bytes(b"compiled")
    (first / "words.index").write_bytes(b"1 2 3")
    (first / "latest").symlink_to(tmp_path)
    os.mkfifo(first / "commands")
    # Then another node serves it in its place
    second = (await node("elsewhere").prepare(spec)).model_dir
    assert second.resolve() == first.resolve() == path
    # and it can be registered again
    assert inspect_archive(path, path.name, tmp_path / "work").sha256 == spec.archive_sha256


@pytest.mark.parametrize("name", ["weights.pt", "MAR-INF/MANIFEST.json"])
async def test_folder_whose_own_files_have_changed_is_refused_by_further_nodes(
    name, node, tmp_path
):
    # Given
    path = folder_in(tmp_path)
    spec = spec_of(path)
    await node().prepare(spec)
    # When
    (path / name).write_bytes((path / name).read_bytes() + b" ")
    # Then
    with pytest.raises(InvalidModel, match="SHA-256 differs"):
        await node("elsewhere").prepare(spec)


async def test_folders_of_two_stores_with_the_same_manifest_are_not_taken_for_each_other(tmp_path):
    # Given two stores, and one work folder
    places = []
    for store in ("a", "b"):
        path = write_folder(tmp_path / store / "echo", FILES)
        (path / "labels").write_text(store)
        files = ModelFiles(Settings(work_dir=tmp_path / "work", model_store=tmp_path / store))
        # When
        places.append((await files.prepare(spec_of(path))).model_dir)
    # Then
    assert [(place / "labels").read_text() for place in places] == ["a", "b"]
