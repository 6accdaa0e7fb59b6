"""`ferry archive` makes what torch-model-archiver makes."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from ferry.commands.archive import SUFFIXES, archive
from workers.archives.model_archive import inspect_archive

MANIFEST = "MAR-INF/MANIFEST.json"


FILES = (
    *("handler.py", "model.py", "weights.pt", "needs.txt", "index_to_name.json"),
    *("words-1.txt", "words-2.txt", "extra/a.txt", "extra/deep/b.txt", "extra/.hidden/c.txt"),
    *("extra/__pycache__/d.pyc", "extra/__pycache__2/e.txt", "extra/MAR-INF/MANIFEST.json"),
    "shared/deep/f.txt",
)
LINKS = {
    "extra/linked": "../shared",
    "extra/deep/linked": "../linked/deep",
    "extra/g.txt": "../words-1.txt",
}


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Runs in a folder with everything that a model may consist of."""
    for name in FILES:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}")
    for link, target in LINKS.items():
        (tmp_path / "in" / link).symlink_to(target)
    (tmp_path / "in" / "model-config.yaml").write_text("batchSize: 4")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(archive, list(arguments))


def contents(path):
    """Name and bytes of every file in an archive of any format."""
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
    if path.suffix == ".mar":
        with zipfile.ZipFile(path) as bundle:
            return {name: bundle.read(name) for name in bundle.namelist()}
    with tarfile.open(path) as bundle:
        files = [member for member in bundle if member.isfile()]
        return {member.name: bundle.extractfile(member).read() for member in files}


def without_manifest(files):
    """The files, and the manifest without what differs from run to run."""
    (name,) = [name for name in files if name.endswith(MANIFEST)]
    manifest = json.loads(files.pop(name))
    assert manifest.pop("createdOn")
    assert manifest.pop("archiverVersion")
    return name, manifest, list(manifest["model"]), files


@pytest.mark.parametrize(
    ("archive_format", "name"),
    [("default", "m.mar"), ("zip-store", "m.mar"), ("tgz", "m.tar.gz"), ("no-archive", "m")],
)
def test_archive_equals_torch_model_archivers(archive_format, name, parts, tmp_path):
    # Given
    given = {
        "model_name": "m",
        "version": "1.5",
        "handler": "handler.py",
        "serialized_file": "weights.pt",
        "model_file": "model.py",
        "extra_files": "extra,words-*.txt,index_to_name.json",
        "requirements_file": "needs.txt",
        "config_file": "model-config.yaml",
        "archive_format": archive_format,
    }
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    subprocess.run(
        [sys.executable, "-m", "model_archiver.model_packaging", *flags, "--export-path=../out"],
        check=True,
    )
    # When
    result = invoke(*flags, f"--export-path={tmp_path / 'new' / 'folder'}")
    # Then
    assert result.exit_code == 0, result.output
    made = tmp_path / "new" / "folder" / name
    assert without_manifest(contents(made)) == without_manifest(contents(tmp_path / "out" / name))
    if archive_format == "zip-store":
        with zipfile.ZipFile(made) as bundle:
            assert {info.compress_type for info in bundle.infolist()} == {zipfile.ZIP_STORED}
    assert inspect_archive(made, name, tmp_path / "work").config == {"batchSize": 4}
    assert [path.name for path in made.parent.iterdir()] == [name]


@pytest.mark.parametrize(
    ("handler", "files"),
    [
        ("image_classifier", []),
        ("handler.py:answer", ["handler.py"]),
        ("handler", ["handler.py"]),
        ("../in/handler.py:answer", ["handler.py"]),
    ],
)
def test_handler_may_be_built_in_or_name_a_function(handler, files, parts):
    # When
    result = invoke("--model-name=m", "-v=1", f"--handler={handler}")
    # Then
    assert result.exit_code == 0, result.output
    packed = contents(Path("m.mar"))
    assert json.loads(packed.pop(MANIFEST))["model"]["handler"] == handler.rpartition("/")[2]
    assert list(packed) == files


GOOD = ["--model-name=m", "--version=1", "--handler=handler.py"]


def test_existing_archive_is_kept_unless_forced(parts):
    # Given
    Path("m.mar").write_text("mine")
    # When
    refused = invoke(*GOOD)
    # Then
    assert refused.exit_code == 1
    assert "m.mar already exists. Use --force" in refused.output
    assert Path("m.mar").read_text() == "mine"
    assert invoke(*GOOD, "-f").exit_code == 0
    assert zipfile.is_zipfile("m.mar")


WRONG = {
    "no name": (["--version=1", "--handler=handler.py"], 2, "--model-name"),
    "no version": (["--model-name=m", "--handler=handler.py"], 2, "--version"),
    "no handler": (["--model-name=m", "--version=1"], 2, "--handler"),
    "bad name": ([*GOOD, "--model-name=a/b"], 2, "use letters, digits"),
    "bad version": ([*GOOD, "--version=1 0"], 2, "use letters, digits"),
    "handler missing": ([*GOOD, "--handler=gone.py"], 2, "'gone.py' does not exist"),
    "weights missing": ([*GOOD, "--serialized-file=gone.pt"], 2, "'gone.pt' does not exist"),
    "extra missing": ([*GOOD, "--extra-files=gone*"], 2, "Nothing matches 'gone*'"),
    "runtime": ([*GOOD, "--runtime=perl"], 2, "perl"),
    "format": ([*GOOD, "--archive-format=rar"], 2, "rar"),
    "same place": ([*GOOD, "--extra-files=other/handler.py"], 1, "Two files would both be"),
    "file and folder": ([*GOOD, "--extra-files=a,b"], 1, "'note' would be a file and a folder"),
    "path is file": ([*GOOD, "--export-path=needs.txt"], 2, "needs.txt"),
    "path in file": ([*GOOD, "--export-path=needs.txt/x"], 1, "Cannot write"),
}


@pytest.mark.parametrize(("arguments", "code", "text"), WRONG.values(), ids=WRONG)
def test_mistake_is_named_and_leaves_nothing(arguments, code, text, parts):
    # Given
    for name in ("other/handler.py", "a/note", "b/note/x.txt"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text("another")
    before = sorted(Path().rglob("*"))
    # When
    result = invoke(*arguments)
    # Then
    assert result.exit_code == code, result.output
    assert text in result.output.replace("\n", " ")
    assert sorted(Path().rglob("*")) == before


def make_special(path, kind):
    """Makes what no archive can hold as it is."""
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as door:
            door.bind(path.name)
    else:
        path.symlink_to({"loop": "..", "own loop": path.name, "broken": "nowhere"}[kind])


@pytest.mark.parametrize("archive_format", SUFFIXES)
@pytest.mark.parametrize("kind", ["loop", "own loop", "broken", "pipe", "socket"])
def test_what_cannot_be_packed_is_named_and_leaves_no_archive(kind, archive_format, parts):
    # Given
    make_special(Path("project/data/odd"), kind)
    # When
    flags = ("--extra-files=words-1.txt,project/", f"--archive-format={archive_format}")
    result = invoke(*GOOD, *flags, "--export-path=../out")
    # Then
    assert result.exit_code == 1
    text = "is a link to a folder that it lies in" if kind == "loop" else "is a broken link, or a"
    assert f"Error: project/data/odd {text}" in result.output
    assert not list(Path("../out").iterdir())


@pytest.mark.parametrize("archive_format", SUFFIXES)
def test_archive_that_finds_no_room_leaves_the_one_of_before(archive_format, parts):
    # Given
    flags = (*GOOD, f"--archive-format={archive_format}", "--export-path=../out", "--force")
    invoke(*flags)
    (made,) = Path("../out").iterdir()
    before = contents(made)
    Path("large.bin").write_bytes(os.urandom(200_000))
    # When no file may become longer than half of that
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        result = invoke(*flags, "--extra-files=words-1.txt,large.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # Then
    assert result.exit_code == 1
    assert f"Cannot write ../out/{made.name}: " in result.output
    assert [path.name for path in Path("../out").iterdir()] == [made.name]
    assert contents(made) == before


def test_folder_in_which_an_archive_is_written_anew_keeps_its_other_files(parts):
    # Given
    flags = (*GOOD, "--archive-format=no-archive", "--export-path=../out")
    invoke(*flags)
    Path("../out/m/mine.txt").write_text("mine")
    Path("handler.py").write_text("new")
    # When
    result = invoke(*flags, "--force")
    # Then
    assert result.exit_code == 0, result.output
    assert {**contents(Path("../out/m")), MANIFEST: b""} == {
        MANIFEST: b"",
        "handler.py": b"new",
        "mine.txt": b"mine",
    }


def test_target_is_packed_with_the_modules_beside_it_and_its_settings(parts):
    # Given a file that imports a module beside it
    text = "import ferry, helper\n@ferry.model(batch_size=4, version='2.0')\ndef shout(b): ..."
    Path("my model.py").write_text(text)
    Path("helper.py").write_text("")
    # When
    options = ("--requirements-file", "needs.txt", "--extra-files", "index_to_name.json")
    done = invoke("my model.py", "--export-path", str(parts / "out"), *options)
    # Then
    assert done.exit_code == 0, done.output
    _, manifest, _, files = without_manifest(contents(parts / "out" / "shout.mar"))
    others = {"my model.py", "helper.py", "needs.txt", "index_to_name.json"}
    assert set(files) == {"model-config.yaml", *others}
    assert manifest["model"] == {
        "modelName": "shout",
        "modelVersion": "2.0",
        "handler": "python_model",
        "requirementsFile": "needs.txt",
        "configFile": "model-config.yaml",
        "target": "my model.py:shout",
    }
    info = inspect_archive(parts / "out" / "shout.mar", "shout.mar", parts / "work")
    assert (info.config["batchSize"], info.config["batchPolicy"]) == (4, "adaptive")


def test_target_without_code_has_its_external_data(parts):
    # Given
    Path("net.onnx").write_bytes(b"graph")
    Path("net.onnx.data").write_bytes(b"weights")
    # When
    invoke("net.onnx", "--version", "3", "--export-path", str(parts / "out"))
    # Then
    _, manifest, _, files = without_manifest(contents(parts / "out" / "net.mar"))
    assert {"net.onnx", "net.onnx.data"} < set(files)
    assert manifest["model"] == {
        "modelName": "net",
        "serializedFile": "net.onnx",
        "handler": "tensor_model",
        "modelVersion": "3",
        "configFile": "model-config.yaml",
        "target": "net.onnx",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["two.py", "--model-name", "x"], "FILE.py:NAME picks one"),
        (["two.py", "--handler", "handler.py"], "--handler does not go with a TARGET"),
        (["out.mar"], "is an archive already"),
        (["nosuch.py"], "there is no file nosuch.py"),
        (["two.py:nosuch"], "has no model 'nosuch'; it has: a, b"),
        (["--version", "1.0"], "Missing option '--model-name'. Give it, or a TARGET"),
    ],
)
def test_target_that_cannot_be_packed_is_refused(parts, arguments, expected):
    # Given
    Path("two.py").write_text(
        "import ferry\n@ferry.model\ndef a(x): ...\n@ferry.model\ndef b(x): ..."
    )
    Path("out.mar").write_bytes(b"")
    # When
    done = invoke(*arguments)
    # Then
    assert done.exit_code != 0
    assert expected in done.output
