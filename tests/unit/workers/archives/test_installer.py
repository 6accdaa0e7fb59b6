"""Models' requirements, each in an environment of its own."""

import asyncio
import errno
import logging
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from batching.errors import DependenciesFailed
from batching.settings.settings import Settings
from tests.support import make_spec
from tests.timing import assert_within
from tests.unit.workers.archives.wheels import PACKAGE, offline, write_wheel
from workers.archives.model_files import READY, ModelFiles, read_requirements

SPEC = make_spec(
    manifest={"model": {"modelName": "digits", "requirementsFile": "requirements.txt"}}
)
PROBE = f"import {PACKAGE}, pytest, torch, sys; print({PACKAGE}.ANSWER, sys.prefix)"


@pytest.fixture
def model_dir(tmp_path):
    """A model that requires the package, which pip finds."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "requirements.txt").write_text(f"{PACKAGE}>=1  # the only one\n")
    return folder


@pytest.fixture(autouse=True)
def wheels(tmp_path, monkeypatch):
    write_wheel(tmp_path / "wheels")
    for name, value in offline(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "wheels"


def files_in(work_dir, *, is_allowed=True, **options):
    settings = Settings(work_dir=work_dir, install_py_dep_per_model=is_allowed)
    return ModelFiles(settings, **options)


def install(folder, model_dir, *, spec=SPEC, timeout_s=60.0):
    installer = files_in(folder / "work", install_timeout_s=timeout_s)
    return asyncio.run(installer.python_for(spec, model_dir))


def runs_of_pip(caplog):
    return sum(record.message.startswith("installing ") for record in caplog.records)


@pytest.mark.slow
def test_requirements_are_installed_beside_the_servers_packages(tmp_path, model_dir, caplog):
    # Given
    caplog.set_level(logging.INFO, "workers.archives.model_files")
    # When
    python = install(tmp_path, model_dir)
    # Then: the model's own package and the server's torch
    told = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["42", str(python.parent.parent)]
    assert f"Successfully installed {PACKAGE.replace('_', '-')}-1.0" in caplog.text.replace(
        "_", "-"
    )
    with pytest.raises(ModuleNotFoundError):
        __import__(PACKAGE)

    # And the next start finds it there
    assert install(tmp_path, model_dir) == python
    assert runs_of_pip(caplog) == 1


@pytest.mark.slow
async def test_environment_is_made_once_when_many_ask(tmp_path, model_dir, caplog):
    # Given two nodes of one machine, and two workers of each
    caplog.set_level(logging.INFO, "workers.archives.model_files")
    nodes = [files_in(tmp_path / "work") for _ in range(2)]
    # When
    asked = [node.python_for(SPEC, model_dir) for node in nodes for _ in range(2)]
    pythons = await asyncio.gather(*asked)
    # Then
    assert len(set(pythons)) == 1
    assert runs_of_pip(caplog) == 1
    # And nothing is kept for each set of requirements there ever was
    assert not any(node._making for node in nodes)


@pytest.mark.slow
def test_environment_that_was_left_half_made_is_made_again(tmp_path, model_dir):
    # Given
    python = install(tmp_path, model_dir)
    place = python.parent.parent
    (place / READY).unlink()
    for file in place.rglob(f"{PACKAGE}.py"):
        file.unlink()
    # When
    install(tmp_path, model_dir)
    # Then
    subprocess.run([python, "-c", f"import {PACKAGE}"], capture_output=True, check=True)


@pytest.mark.slow
async def errors_of_three(installer, model_dir):
    """Asks for two workers at once, and for one more when these have failed."""
    asked = [installer.python_for(SPEC, model_dir) for _ in range(2)]
    errors = await asyncio.gather(*asked, return_exceptions=True)
    with pytest.raises(DependenciesFailed) as caught:
        await installer.python_for(SPEC, model_dir)
    assert [type(error) for error in errors] == [DependenciesFailed] * 2
    return [*errors, caught.value]


async def test_failing_installation_is_told_to_all_and_not_tried_again_at_once(
    tmp_path, model_dir, caplog
):
    # Given
    caplog.set_level(logging.INFO, "workers.archives.model_files")
    (model_dir / "requirements.txt").write_text("no_such_package_anywhere==9\n")
    installer = files_in(tmp_path / "work")
    # When / Then
    text = (
        "Custom pip package installation failed for model digits: No matching distribution found "
        "for no_such_package_anywhere==9. The node's log has all that pip said."
    )
    for error in await errors_of_three(installer, model_dir):
        assert error.message.replace("-", "_") == text.replace("-", "_")
        assert not isinstance(error.__cause__, OSError)
    assert runs_of_pip(caplog) == 1
    assert "pip model=digits: ERROR: Could not find a version" in caplog.text


@pytest.mark.slow
def test_installation_ends_when_its_time_is_up(tmp_path, model_dir, monkeypatch):
    # Given an index that never answers
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", address)
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        # When
        started = time.monotonic()
        with pytest.raises(DependenciesFailed, match=r"not done within 3 s"):
            install(tmp_path, model_dir, timeout_s=3)
    # Then
    assert_within(time.monotonic() - started, 30)
    assert not [child for child in psutil.Process().children() if "pip" in child.cmdline()]


@pytest.mark.slow
async def test_disk_that_pip_finds_full_is_the_cause_of_its_failure(
    tmp_path, model_dir, caplog, monkeypatch
):
    # Given a pip that says what pip says then
    caplog.set_level(logging.INFO, "workers.archives.model_files")
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{said}'\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("workers.archives.model_files._python_in", lambda _place: python)
    installer = files_in(tmp_path / "work")
    # When / Then: also for a worker that asks while it is not tried again
    for error in await errors_of_three(installer, model_dir):
        assert "No space left on device" in error.message
        assert isinstance(error.__cause__, OSError)
        assert error.__cause__.errno == errno.ENOSPC
    assert runs_of_pip(caplog) == 1


@pytest.mark.parametrize(("spec", "is_allowed"), [(SPEC, False), (make_spec(), True)])
async def test_server_that_may_not_or_need_not_install_makes_no_environment(
    spec, is_allowed, tmp_path, model_dir, caplog
):
    # Given
    installer = files_in(tmp_path / "work", is_allowed=is_allowed)
    # When / Then
    assert await installer.python_for(spec, model_dir) == Path(sys.executable)
    assert not (tmp_path / "work").exists()
    text = "requirements.txt is not installed, install_py_dep_per_model is off"
    assert (text in caplog.text) == (not is_allowed)


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--index-url https://elsewhere.example/simple", "--index-url"),
        ("--extra-index-url=https://elsewhere.example/simple", "--extra-index-url"),
        ("-i https://elsewhere.example/simple", "-i"),
        ("-ihttps://elsewhere.example/simple", "-i"),
        ("  --find-links /tmp", "--find-links"),
        ("-r more.txt", "-r"),
        ("--pre --index-url https://elsewhere.example/simple", "--index-url"),
        ("--trust\\\ned-host elsewhere.example", "--trusted-host"),
        ("# harmless \\\n--index-url https://elsewhere.example/simple", "--index-url"),
        ("\\\n# harmless\n--index-url https://elsewhere.example/simple", "--index-url"),
        ("x --hash=sha256:0 --index-url https://elsewhere.example/simple", "--index-url"),
        ("numpy \\ # harmless\n--index-url https://elsewhere.example/simple", "--index-url"),
        ("numpy\x0b--index-url https://elsewhere.example/simple", "--index-url"),
    ],
)
def test_archive_does_not_say_where_packages_come_from(line, option, tmp_path, model_dir):
    # Given
    (model_dir / "requirements.txt").write_text(f"{PACKAGE}\n{line}\n")
    # When / Then
    with pytest.raises(DependenciesFailed, match=f"has the option {option}. Where packages"):
        install(tmp_path, model_dir)


REWRITTEN = {
    "numpy  # the only one\n\n# nothing\n": "numpy",
    "numpy \\\n  >=1 ; python_version > '3'": "numpy   >=1 ; python_version > '3'",
    "numpy==1 \\\n --hash=sha256:12 \\\n --hash sha256:34": (
        "numpy==1  --hash=sha256:12  --hash sha256:34"
    ),
    "--only-binary=:all:\n--no-binary a,b\n./a b.whl": (
        "--only-binary=:all:\n--no-binary a,b\n./a b.whl"
    ),
    "numpy \\\n# harmless \\\ntorch": "numpy\ntorch",
    "": "",
}


@pytest.mark.parametrize(("text", "rewritten"), REWRITTEN.items(), ids=range(len(REWRITTEN)))
def test_requirements_are_for_pip_what_they_are_for_us(text, rewritten, model_dir):
    # Given
    file = model_dir / "requirements.txt"
    file.write_text(text)
    # When
    first = read_requirements(model_dir, file.name)
    file.write_text(first)
    # Then
    assert first == rewritten
    assert read_requirements(model_dir, file.name) == first


UNREADABLE = [
    b"--pre 'never ending",
    b'--pre "--index-url" https://elsewhere.example/simple',
    b"--pre \\--index-url https://elsewhere.example/simple",
    b"numpy \\ \n--pre",
    b"\xff\xfen\0",
]


@pytest.mark.parametrize("content", UNREADABLE)
def test_requirements_are_refused_when_pip_might_read_them_otherwise(content, model_dir):
    # Given
    (model_dir / "requirements.txt").write_bytes(content)
    # When / Then
    with pytest.raises(DependenciesFailed, match=r"is not UTF-8: |has quotes or backslashes"):
        read_requirements(model_dir, "requirements.txt")


def test_requirements_outside_of_the_archive_are_not_read(tmp_path, model_dir):
    # Given
    (tmp_path / "secret.txt").write_text("x")
    # When / Then
    for name in ("../secret.txt", "none.txt"):
        with pytest.raises(DependenciesFailed, match="missing in the archive"):
            read_requirements(model_dir, name)
