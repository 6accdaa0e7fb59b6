"""The units for systemd: systemd accepts them, and what they start serves and stops in time."""

import configparser
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from batching.settings.loading import load_settings
from batching.settings.settings import Settings
from ferry.main import main
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.e2e.archives import make_scripted
from tests.e2e.ferry_process import FerryProcess
from tests.ports import free_ports
from tests.support import eventually

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
INSTALLED = "/opt/torchferry/bin/ferry"

pytestmark = [pytest.mark.timeout(240)]


def service(path):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(path)
    return parser["Service"]


def variables():
    lines = (FOLDER / "torchferry.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def start(name, folder, environment):
    program, *words = shlex.split(service(FOLDER / f"torchferry-{name}.service")["ExecStart"])
    assert program == INSTALLED
    return FerryProcess(folder, words, environment=environment)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_units_are_what_systemd_understands(tmp_path):
    # Given: programs that are here, as systemd looks for them
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace(INSTALLED, shutil.which("true"))
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    # When
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    # Then: what it does not know it only complains of
    assert len(UNITS) == 2
    assert [line for line in done.stderr.splitlines() if "torchferry" in line] == []
    assert done.returncode == 0


def test_file_of_variables_has_settings_only():
    # When
    settings, without_effect = load_settings(environment=variables())
    # Then
    assert without_effect == []
    assert settings.redis_url
    fields = {name.removeprefix("FERRY_").lower() for name in variables()}
    assert fields <= {*Settings.__dataclass_fields__}


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_waits_for_a_drain_and_does_not_try_again_what_cannot_start(unit):
    # Given
    drain_s = Settings().drain_timeout_s + Settings().drain_delay_s
    assert float(service(unit)["TimeoutStopSec"]) > drain_s
    _, *words = shlex.split(service(unit)["ExecStart"])
    mistaken = {**variables(), "FERRY_JOB_QUEUE_SIZE": "many"}
    # When
    result = CliRunner().invoke(main, words, env=mistaken)
    # Then
    assert result.exit_code == int(service(unit)["RestartPreventExitStatus"])
    assert "FERRY_JOB_QUEUE_SIZE='many'" in result.stderr


@pytest.mark.slow
def test_units_serve_and_stop(tmp_path):
    with EmbeddedRedis(find_server()) as redis:
        # Given: their variables, but for places
        store, port = tmp_path / "store", free_ports(3)
        store.mkdir()
        places = {
            "REDIS_URL": redis.url,
            "FERRY_MODEL_STORE": str(store),
            "FERRY_WORK_DIR": str(tmp_path / "work"),
            "FERRY_INFERENCE_ADDRESS": f"http://127.0.0.1:{port}",
        }
        assert places.keys() == variables().keys()
        places |= {
            f"FERRY_{role}_ADDRESS": f"http://127.0.0.1:{port + number}"
            for number, role in enumerate(("MANAGEMENT", "METRICS"), 1)
        }
        make_scripted(store, "m")
        parts = {name: start(name, tmp_path, places) for name in ("node", "ingress")}
        try:
            parts["ingress"].wait_for_line(f"listening address=http://127.0.0.1:{port + 1}")
            # When
            query = {"url": "m-1.0.mar", "initial_workers": 1, "synchronous": "true"}
            url = f"http://127.0.0.1:{port + 1}/models"
            registered = requests.post(url, params=query, timeout=60)
            answer = requests.post(f"http://127.0.0.1:{port}/predictions/m", data=b"x", timeout=30)
            # Then
            assert (registered.status_code, answer.status_code) == (200, 200)
            eventually(lambda: "ready model=m" in parts["node"].log(), 5)
            stopped = [parts[name].stop(signal.SIGTERM) for name in ("ingress", "node")]
            assert [(one.exit_code, one.left_behind) for one in stopped] == [(0, [])] * 2
        finally:
            for part in parts.values():
                part.kill()
