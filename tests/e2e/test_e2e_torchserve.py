"""TorchServe's manual, typed in as it is printed, after docs/moving-from-torchserve.md."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import torch

from batching.settings.snapshots import newest_snapshot, read_snapshot
from tests.e2e.archives import make_archive, make_scripted
from tests.e2e.clients import needs_curl
from tests.e2e.ferry_process import FERRY, MARK, STOP_TIMEOUT_S, ferry_server, processes_of
from tests.e2e.test_readme import MOVING, blocks
from tests.ports import free_ports
from tests.support import came_true, eventually

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MODEL = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 5)

    def forward(self, images):
        return self.layer(images.mean((2, 3)))
"""

# Writes in each of the ways in which a handler may.
TALKER = """
import logging
import os
import sys
import warnings

def handle(data, context):
    print("printed by it")
    sys.stderr.write("written by it\\n")
    os.write(2, b"from below it\\n")
    warnings.warn("warned by it")
    logging.getLogger("mine").info("logged by it")
    return data and ["done"]
"""

# A network of this name takes half a minute to load; what it says does not matter here.
CLASSES = """
def handle(data, context):
    return data and [{"tabby": 0.5, "tiger_cat": 0.4} for _ in data]
"""


class Terminal:
    """A shell in a folder of its own, where `torchserve` is ours, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(3)
        self.mark = uuid.uuid4().hex
        (folder / "model_store").mkdir()
        (folder / "tmp").mkdir()
        self.environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("FERRY_")},
            "PATH": f"{self._own_bin()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(folder / "tmp"),
            "FERRY_WORK_DIR": str(folder / "work"),
            "FERRY_INFERENCE_ADDRESS": f"http://127.0.0.1:{self.port}",
            "FERRY_MANAGEMENT_ADDRESS": f"http://127.0.0.1:{self.port + 1}",
            "FERRY_METRICS_ADDRESS": f"http://127.0.0.1:{self.port + 2}",
            MARK: self.mark,
        }
        for name in ("REDIS_URL", "LOG_LOCATION", "TS_CONFIG_FILE"):
            self.environment.pop(name, None)
        for block in blocks(MOVING):
            if "torchserve" in block.kinds:
                self.type(block.text)

    def _own_bin(self) -> Path:
        """What is made beside `ferry` is made here."""
        place = self.folder / "bin"
        place.mkdir()
        (place / "ferry").symlink_to(FERRY)
        return place

    def type(self, text: str, *, code: int = 0) -> str:
        """What the commands print, complaints included."""
        for host in ("localhost", "127.0.0.1"):
            for offset in range(3):
                text = text.replace(f"{host}:{8080 + offset}", f"127.0.0.1:{self.port + offset}")
        # A file and not a pipe: the server in the background inherits it, as it does a terminal.
        with (self.folder / f"typed-{uuid.uuid4().hex[:6]}.log").open("w+b") as output:
            done = subprocess.run(
                ["bash", "-uc", text],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=90,
                check=False,
            )
            output.seek(0)
            printed = output.read().decode(errors="replace")
        assert done.returncode == code, f"{text}\n{printed}"
        return printed

    def get(self, path: str, offset: int = 0, **options: Any) -> requests.Response:
        url = f"http://127.0.0.1:{self.port + offset}/{path}"
        return requests.get(url, timeout=30, **options)

    def archive(self, name: str, version: str = "1.0") -> None:
        """A small network under this name, made by the archiver's own command line."""
        (self.folder / "model.py").write_text(MODEL)
        scope: dict[str, Any] = {}
        exec(MODEL, scope)
        torch.save(scope["Small"]().state_dict(), self.folder / "small.pth")
        self.type(
            f"torch-model-archiver --model-name {name} --version {version} --model-file model.py "
            "--serialized-file small.pth --export-path model_store --handler image_classifier -f"
        )

    def is_ready(self, model: str) -> bool:
        description = self.get(f"models/{model}", 1).json()
        return all(worker["status"] == "READY" for worker in description[0]["workers"])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    mine = Terminal(tmp_path)
    for name in ("kitten.jpg", "kitten_small.jpg"):
        shutil.copy(ROOT / "examples" / "kitten.jpg", tmp_path / name)
    yield mine
    for line in processes_of(mine.mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), 9)


@needs_curl
def test_torchserve_quick_start_works_as_printed(terminal):
    # Given "Getting started": a model store with densenet161
    terminal.archive("densenet161")
    # When
    printed = terminal.type(
        "torchserve --start --ncs --model-store model_store --models densenet161.mar "
        "--disable-token-auth  --enable-model-api\n"
    )
    # Then the prompt is back when the ports are open
    assert "Model server started." in printed
    answer = terminal.type(
        "curl -s http://127.0.0.1:8080/predictions/densenet161 -T kitten_small.jpg"
    )
    assert len(json.loads(answer)) == 5
    # And a second start says what to do
    again = terminal.type("torchserve --start --ncs --model-store model_store", code=1)
    assert (
        "TorchServe is already running, please use torchserve --stop to stop TorchServe." in again
    )
    # And it stops, with everything that belongs to it
    assert "TorchServe has stopped." in terminal.type("torchserve --stop")
    assert "TorchServe is not currently running." in terminal.type("torchserve --stop")
    assert processes_of(terminal.mark) == []
    # And the logs are where operators look
    access = (terminal.folder / "logs" / "access_log.log").read_text()
    assert '"PUT /predictions/densenet161 HTTP/1.1" 200 ' in access
    metrics = (terminal.folder / "logs" / "ts_metrics.log").read_text()
    assert "Requests2XX.Count:1.0|#Level:Host|#hostname:" in metrics
    assert (
        "ts_inference_requests_total.Count:1.0|#model_name:densenet161,model_version:default|"
        in metrics
    )
    # And no snapshot was made
    assert not (terminal.folder / "logs" / "config").exists()


@needs_curl
def test_torchserve_batch_inference_page_works_as_printed(terminal):
    # Given "Batch inference with TorchServe", configured by the management API
    store = terminal.folder / "model_store"
    made = make_archive(store, "resnet-152-batch_v2", {"handler.py": CLASSES}, version="2.0")
    (store / made).rename(store / "resnet-152-batch_v2.mar")
    (terminal.folder / "config.properties").write_text(
        f"inference_address=http://127.0.0.1:{terminal.port}\n"
        f"management_address=http://127.0.0.1:{terminal.port + 1}\n"
    )
    # When
    terminal.type(
        "torchserve --start --model-store model_store --disable-token-auth  --enable-model-api"
    )
    # Then
    ping = terminal.type("curl -s localhost:8080/ping")
    assert ping == '{\n  "status": "Healthy"\n}\n'
    terminal.type(
        'curl -s -X POST "localhost:8081/models?url=resnet-152-batch_v2.mar&batch_size=3'
        '&max_batch_delay=10&initial_workers=1"'
    )
    text = terminal.type("curl -s http://localhost:8081/models/resnet-152-batch_v2")
    [described] = json.loads(text)
    assert (described["modelVersion"], described["batchSize"]) == ("2.0", 3)
    assert (described["maxBatchDelay"], described["minWorkers"]) == (10, 1)
    answer = terminal.type(
        "curl -s http://localhost:8080/predictions/resnet-152-batch_v2 -T kitten.jpg"
    )
    assert json.loads(answer) == {"tabby": 0.5, "tiger_cat": 0.4}
    # And a restart, which names no models, brings it back
    terminal.type("torchserve --stop; torchserve --start")
    eventually(lambda: terminal.is_ready("resnet-152-batch_v2"), 30)
    [restored] = terminal.get("models/resnet-152-batch_v2", 1).json()
    assert (restored["batchSize"], restored["loadedAtStartup"]) == (3, True)
    terminal.type("torchserve --stop")


def test_torchserve_configured_by_its_file_loads_the_models_in_it(terminal):
    # Given the same page, configured by config.properties
    make_scripted(terminal.folder / "model_store", "resnet-152-batch_v2", version="2.0")
    (terminal.folder / "config.properties").write_text(
        "load_models=resnet-152-batch_v2-2.0.mar\n"
        "models={\\\n"
        '  "resnet-152-batch_v2": {\\\n'
        '    "2.0": {\\\n'
        '        "defaultVersion": true,\\\n'
        '        "marName": "resnet-152-batch_v2.mar",\\\n'
        '        "minWorkers": 1,\\\n'
        '        "maxWorkers": 1,\\\n'
        '        "batchSize": 3,\\\n'
        '        "maxBatchDelay": 5000,\\\n'
        '        "responseTimeout": 120\\\n'
        "    }\\\n"
        "  }\\\n"
        "}\n"
        "number_of_netty_threads=32\n"
        "job_queue_size=1000\n"
        "enable_envvars_config=true\n"
    )
    # When
    terminal.environment["TS_METRICS_MODE"] = "prometheus"
    printed = terminal.type(
        "torchserve --start --model-store model_store --ts-config config.properties"
    )
    # Then tokens are asked for, as in TorchServe, and the keys are the owner's alone
    assert "number_of_netty_threads has no effect here: there is no Java" in printed
    keys_file = terminal.folder / "key_file.json"
    assert stat.S_IMODE(keys_file.stat().st_mode) == 0o600
    keys = json.loads(keys_file.read_text())
    assert terminal.get("ping").json()["type"] == "InvalidKeyException"
    management = {"Authorization": f"Bearer {keys['management']['key']}"}
    [described] = terminal.get("models/resnet-152-batch_v2", 1, headers=management).json()
    assert (described["batchSize"], described["maxBatchDelay"]) == (3, 5000)
    assert described["jobQueueStatus"]["remainingCapacity"] == 1000
    # And models cannot be registered over HTTP
    url = f"http://127.0.0.1:{terminal.port + 1}/models?url=x.mar"
    refused = requests.post(url, headers=management, timeout=30)
    assert (refused.status_code, refused.json()["type"]) == (405, "MethodNotAllowedException")
    # And a new key is to be had for the API key
    bearer = f"Bearer {keys['API']['key']}"
    renewed = terminal.get("token?type=inference", 1, headers={"Authorization": bearer})
    assert (renewed.status_code, renewed.text) == (200, "\n")
    inference = json.loads(keys_file.read_text())["inference"]["key"]
    assert terminal.get("ping", headers={"Authorization": f"Bearer {inference}"}).ok
    # And the variable has switched the metrics on
    assert "Requests2XX{" in terminal.get("metrics", 2).text
    # And stopping takes the keys along
    terminal.type("torchserve --stop")
    assert not keys_file.exists()


def test_torchserve_starts_as_sagemakers_inference_toolkit_starts_it(terminal):
    # Given what it writes and calls: one port, a model without an archive, a handler of its own
    folder = terminal.folder
    for name in ("ml/model/code", "toolkit"):
        (folder / name).mkdir(parents=True)
    (folder / "ml/model/model.pt").write_text("weights")
    (folder / "ml/model/code/inference.py").write_text(
        "def model_fn(folder): return open(f'{folder}/model.pt').read()\n"
    )
    (folder / "toolkit/handler_service.py").write_text(
        "import inference\n"
        "def handle(data, context):\n"
        '    folder = context.system_properties["model_dir"]\n'
        "    return data and [inference.model_fn(folder) for _ in data]\n"
    )
    (folder / "sagemaker-ts.properties").write_text(
        "vmargs=-XX:-UseContainerSupport\n"
        "enable_envvars_config=true\n"
        "decode_input_request=false\n"
        "load_models=ALL\n"
        "disable_token_authorization=true\n"
        # As it is there: the line end is missing.
        "enable_model_api=truedefault_response_timeout=60\n"
        f"inference_address=http://0.0.0.0:{terminal.port}\n"
        f"management_address=http://0.0.0.0:{terminal.port}\n"
        f"default_service_handler={folder}/toolkit/handler_service.py:handle\n"
    )
    for name in ("FERRY_INFERENCE_ADDRESS", "FERRY_MANAGEMENT_ADDRESS"):
        del terminal.environment[name]
    terminal.environment["PYTHONPATH"] = os.pathsep.join(
        [f"{folder}/ml/model/code", os.environ.get("PYTHONPATH", "")]
    )
    # When
    printed = terminal.type(
        "torchserve --start --model-store model_store --ts-config sagemaker-ts.properties "
        f"--models model={folder}/ml/model"
    )
    # Then its one model is served where SageMaker asks
    assert "not loaded" not in printed
    eventually(lambda: terminal.get("v2/models/model/ready").ok, 30)
    url = f"http://127.0.0.1:{terminal.port}/invocations"
    assert requests.post(url, data=b"[1]", timeout=30).text == "weights"
    # And the toolkit finds the one process that it waits for, and ends
    lines = [one.split() for one in processes_of(terminal.mark)]
    [pid] = [words[0] for words in lines if "org.pytorch.serve.ModelServer" in words]
    server = psutil.Process(int(pid))
    server.terminate()
    psutil.wait_procs([server], STOP_TIMEOUT_S)
    assert processes_of(terminal.mark) == []


def test_model_log_has_all_that_a_handler_writes(tmp_path):
    # When
    with ferry_server(tmp_path, "--log-files") as server:
        server.register(make_archive(server.store, "talker", {"handler.py": TALKER}))
        assert server.predict("talker").text == "done"
    # Then it is in one file, and was shown, too
    texts = [f"{verb} by it" for verb in ("printed", "written", "warned", "logged")]
    in_model_log, in_server_log, shown = (
        [text for text in [*texts, "from below it"] if text in path.read_text()]
        for path in (
            tmp_path / "logs" / "model_log.log",
            tmp_path / "logs" / "ts_log.log",
            server.process.log_path,
        )
    )
    assert in_model_log == shown == [*texts, "from below it"]
    assert in_server_log == []


def test_up_brings_back_what_was_registered_when_it_was_killed(start, tmp_path):
    # Given a server with a model that was scaled, and another one that was removed
    server = start()
    archive, _ = make_scripted(server.store, "kept")
    server.register(archive, batch_size=4)
    server.register(archive, model_name="removed")
    server.manage("DELETE", "models/removed")
    server.manage("PUT", "models/kept", min_worker=2, synchronous="true")
    eventually(lambda: _newest_workers(tmp_path / "logs" / "config") == {"kept": 2}, 10)
    # When
    server.process.kill()
    second = start()
    # Then
    eventually(lambda: len(second.worker_pids("kept")) == 2, 20)
    assert second.describe("kept")["batchSize"] == 4
    shown = [line.split() for line in second.process.log().splitlines()]
    assert ["Models", "kept"] in shown
    assert second.manage("GET", "models/removed").status_code == 404
    second.process.stop_cleanly()


def test_ingress_that_died_brings_nothing_back(start, tmp_path):
    # Given a server that has restored version 1.0 and loaded a model, both of them replaced since
    server = start()
    first, _ = make_scripted(server.store, "kept")
    named, _ = make_scripted(server.store, "named")
    second, _ = make_scripted(server.store, "kept", version="2.0")
    server.register(first)
    eventually(lambda: _newest_workers(tmp_path / "logs" / "config") == {"kept": 1}, 10)
    server.process.kill()
    again = start("--models", named)
    assert again.manage("GET", "models/named").status_code == 200
    again.register(second)
    again.manage("PUT", "models/kept/2.0/set-default")
    again.manage("DELETE", "models/kept/1.0")
    again.manage("DELETE", "models/named")
    # When
    [ingress] = [line for line in again.process.family() if line.endswith("-m ingress")]
    os.kill(int(ingress.split()[0]), signal.SIGKILL)
    again.process.wait_for_line("ingress ended with exit code -9", 20)
    eventually(lambda: _answers(f"{again.inference}/readyz"), 20)
    # Then
    expected = {"models": [{"modelName": "kept", "modelUrl": second}]}
    assert not came_true(lambda: again.manage("GET", "models").json() != expected, 3)
    assert again.describe("kept")["modelVersion"] == "2.0"
    again.process.stop_cleanly()


def _answers(url: str) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(url, timeout=5).status_code == 200
    return False


def _newest_workers(folder: Path) -> dict[str, int]:
    path = newest_snapshot(folder)
    return {} if path is None else {one.model_name: one.min_worker for one in read_snapshot(path)}
