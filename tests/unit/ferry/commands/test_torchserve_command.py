"""`ferry torchserve` before it starts anything: flags, configuration search, pid file."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from ferry.commands.torchserve import (
    chosen_settings,
    find_config,
    pid_file,
    running_server,
    torchserve,
)
from ferry.main import main
from tests.support import eventually


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Neither this folder's configuration nor a running server's pid file is seen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("TS_CONFIG_FILE", "LOG_LOCATION", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--models a.mar b=b.mar --ncs", "--models a.mar --models b=b.mar --ncs"),
        ("--models a.mar", "--models a.mar"),
        ("--models=a.mar --start", "--models=a.mar --start"),
        ("--start --models all --models b", "--start --models all --models b"),
    ],
)
def test_models_take_several_values(typed, meant):
    made, spread = (torchserve.make_context("torchserve", line.split()) for line in (typed, meant))
    assert made.params == spread.params


def test_configuration_file_is_the_first_one_found(tmp_path):
    # Given
    named, variable, own = (tmp_path / name for name in ("a.cfg", "b.cfg", "config.properties"))
    snapshots = tmp_path / "logs" / "config"
    snapshots.mkdir(parents=True)
    snapshot = snapshots / "20240101000000000-shutdown.cfg"

    def found(ts_config=None, environment=None, is_reading=True):
        return find_config(ts_config, environment or {}, is_reading_snapshots=is_reading)

    # When / Then
    assert found() is None
    own.touch()
    assert found().name == "config.properties"
    snapshot.write_text("model_snapshot={}\n")
    assert found() == snapshot.relative_to(tmp_path)
    assert found(is_reading=False).name == "config.properties"
    # That of `ferry up` would switch tokens off; one that was told to have none may be taken over
    newer = snapshots / "20250101000000000-shutdown.cfg"
    newer.write_text("token_authorization=false\nmodel_snapshot={}\n")
    os.utime(snapshot, (1, 1))
    assert found() == snapshot.relative_to(tmp_path)
    for words in ("disable_token_authorization=true", "key_file=keys.json"):
        newer.write_text(f"token_authorization=false\n{words}\nmodel_snapshot={{}}\n")
        assert found() == newer.relative_to(tmp_path)
    # With a Redis that outlives its servers there is nothing to bring back
    assert found(environment={"REDIS_URL": "redis://r:6379"}).name == "config.properties"
    named.touch()
    assert found(named) == named
    variable.touch()
    assert found(named, {"TS_CONFIG_FILE": str(variable)}) == variable


def test_flags_without_effect_are_taken_and_a_missing_log_config_is_named(tmp_path):
    # Given
    words = ["torchserve", "--start", "--foreground", "--log-config", "nowhere.xml"]
    more = ["--workflow-store", ".", "--ppath", "x", "--cpp-log-config", "y", "--dt"]
    # When
    result = CliRunner().invoke(main, [*words, *more])
    # Then
    assert result.exit_code == 1
    assert "--log-config file not found: nowhere.xml" in result.stderr


def settings_of(folder, **given):
    """Returns the settings that the server gets of these flags and a model store."""
    flags = dict.fromkeys(("ts_config", "log_config", "disable_token_auth", "enable_model_api"))
    return chosen_settings({**flags, "models": (), "model_store": folder, **given}, ncs=True)


@pytest.mark.parametrize(
    ("disable_tokens", "enable_api", "is_open"),
    [(True, None, True), (True, True, False), (None, True, False), (None, None, False)],
)
def test_management_is_open_only_when_no_client_can_bring_code(
    tmp_path, disable_tokens, enable_api, is_open
):
    # Given TorchServe's container: its listeners are open to the network
    given = {"disable_token_auth": disable_tokens, "enable_model_api": enable_api}
    # When
    settings = settings_of(tmp_path, **given)
    # Then
    assert settings.allow_open_management is is_open
    assert (settings.keys_path() is None) is (disable_tokens is True)
    assert settings.enable_model_api is (enable_api is True)


def test_snapshot_that_is_named_is_read_though_none_is_looked_for(tmp_path):
    # Given KServe's way: a configuration that is a snapshot, and nothing to be saved
    path = tmp_path / "config.properties"
    path.write_text('model_snapshot={"name": "startup.cfg", "models": {}}\n')
    # When
    settings = settings_of(tmp_path, ts_config=path)
    # Then
    assert settings.snapshot_file == path
    assert settings.config_snapshots is False


@pytest.mark.parametrize("content", ["", "many", "999999999", str(os.getppid())])
def test_pid_file_is_stale_when_no_server_has_that_number(content):
    # Given
    pid_file().write_text(content)
    # When / Then
    assert running_server() is None
    assert not pid_file().exists()


@contextlib.contextmanager
def torchserve_itself(code, mark="torchserve", **options):
    """A process whose command line looks like TorchServe's, and can be read."""
    with subprocess.Popen([sys.executable, "-c", code, mark], **options) as process:
        # The kernel has none to show yet when the one that started it goes on (Python 3.13).
        eventually(psutil.Process(process.pid).cmdline)
        pid_file().write_text(str(process.pid))
        try:
            yield process
        finally:
            process.kill()


def test_stop_says_which_server_it_stops():
    # Given
    with torchserve_itself("input()", "org.pytorch.serve.ModelServer", stdin=-1) as process:
        # When
        printed = CliRunner().invoke(main, ["torchserve", "--stop"]).stdout
    # Then
    assert printed.splitlines() == [
        f"Stopping the server with pid {process.pid}.",
        "TorchServe has stopped.",
    ]


def test_stop_counts_a_zombie_as_stopped(tmp_path):
    # Given a server that its parent, this test, does not reap
    with torchserve_itself("import time; time.sleep(60)") as process:
        # When
        result = subprocess.run(
            [sys.executable, "-m", "ferry.main", "torchserve", "--stop"],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        # Then
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert (result.returncode, result.stderr) == (0, "")
    assert "TorchServe has stopped." in result.stdout


def test_stop_leaves_the_pid_file_of_a_server_that_was_started_meanwhile():
    # Given a server at whose end another one has started
    another = f"open({str(pid_file())!r}, 'w').write('4')"
    code = f"import signal, time; signal.signal(15, lambda *_: exit({another})); print(flush=True)"
    with torchserve_itself(f"{code}; time.sleep(60)", stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        # When
        result = CliRunner().invoke(main, ["torchserve", "--stop"])
    # Then
    assert "TorchServe has stopped." in result.stdout
    assert pid_file().read_text() == "4"


def test_pid_file_is_not_written_through_a_link(tmp_path):
    # Given a link that another user has laid in the temporary folder
    pid_file().symlink_to(tmp_path / "precious")
    # When
    words = ["torchserve", "--foreground", "--ncs", "--model-store", str(tmp_path)]
    result = CliRunner().invoke(main, words)
    # Then
    assert result.stderr == f"Error: cannot write {pid_file()}: Too many levels of symbolic links\n"
    assert not (tmp_path / "precious").exists()
