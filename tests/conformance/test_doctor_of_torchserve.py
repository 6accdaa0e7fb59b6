"""`ferry doctor` of a TorchServe that runs; the ordinary test has its recorded answers."""

import json
import shutil

import httpx
import pytest
from click.testing import CliRunner

from benchmarks.servers.installed import TORCHSERVE_VERSION
from ferry.main import main
from tests.conformance.archives import fill_store
from tests.conformance.torchserve import ROOT, torchserve

RECORDED = ROOT / "packages" / "moving" / "tests" / "torchserve-0.12.json"
CONFIG = "disable_token_authorization=true\nenable_model_api=true"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_doctor_reads_a_torchserve_that_runs(tmp_path):
    if not any((ROOT / ".bench").glob(f"torchserve-{TORCHSERVE_VERSION}-py*/ready")):
        pytest.skip("TorchServe is not installed: python -m tests.conformance.record")
    if shutil.which("java") is None:
        pytest.skip("TorchServe needs Java")
    # Given
    for name in ("store", "scratch"):
        (tmp_path / name).mkdir()
    fill_store(tmp_path / "store", tmp_path / "scratch")
    with torchserve(tmp_path, CONFIG) as ports:
        url = f"http://127.0.0.1:{ports['management']}"
        httpx.post(f"{url}/models", params={"url": "probe.mar", "batch_size": 4}, timeout=60)
        # When
        done = CliRunner().invoke(main, ["doctor", url, "--json"])
        [described] = httpx.get(f"{url}/models/probe/all").json()
    # Then nothing must change, and its answers have the form of the recorded ones
    assert done.exit_code == 0, done.output
    rows = [(one["part"], one["effect"]) for one in json.loads(done.stdout)["rows"]]
    assert ("server", "same") in rows
    assert ("model probe 1.0", "same") in rows
    recorded = json.loads(RECORDED.read_text())["answers"]["/models/probe/all"][0]
    assert described.keys() == recorded.keys()
