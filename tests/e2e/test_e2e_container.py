"""What the image `server` starts: as TorchServe's image does, for KServe, Vertex AI, SageMaker."""

import json
import os
import signal
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
import yaml

from tests.e2e.archives import make_archive, make_scripted
from tests.e2e.container_process import DEPLOY, DOUBLING, ECHO, Container
from tests.e2e.ferry_process import STOP_TIMEOUT_S
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_container_starts_with_the_file_of_its_image(container):
    # Given
    container.configure(f"load_models=m={make_archive(container.store, 'm', ECHO)}\n")
    # When
    process = container.start()
    container.wait_started()
    # Then it asks for no tokens, as theirs
    answer = container.ask("POST", "predictions/m", data=b"hello")
    assert (answer.status_code, answer.text) == (200, "hello")
    assert container.describe("m")["jobQueueStatus"]["remainingCapacity"] == 1000
    assert container.ask("GET", "metrics", 2).status_code == 200
    # And no client brings code
    assert container.ask("POST", "models?url=m-1.0.mar", 1).status_code == 405
    assert container.ask("DELETE", "models/m", 1).status_code == 405
    stopped = process.stop(signal.SIGTERM)
    assert (stopped.exit_code, stopped.left_behind) == (0, [])


def test_container_that_lets_clients_bring_code_needs_the_operators_word(container):
    # Given
    container.configure("enable_model_api=true\n")
    archive = make_archive(container.store, "m", ECHO)
    # When
    refused = container.start()
    eventually(refused.has_ended, 30)
    # Then
    assert "set allow_open_management=true" in refused.log()
    # And with it, they can
    container.start(environment={"FERRY_ALLOW_OPEN_MANAGEMENT": "true"})
    container.wait_started()
    query = f"url={archive}&initial_workers=1&synchronous=true"
    assert container.ask("POST", f"models?{query}", 1).status_code == 200
    assert container.ask("POST", "predictions/m", data=b"hello").text == "hello"


def test_container_finishes_what_it_has_accepted(container):
    # Given
    archive, ledger = make_scripted(container.store, "m")
    process = container.start("torchserve", "--start", "--ncs", "--dt", "--models", f"m={archive}")
    container.wait_started()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(container.ask, "POST", "predictions/m", data=b"hold|a")
        eventually(lambda: ledger.executions("hold|a"), 30)
        # When
        os.kill(process.pid, signal.SIGTERM)
        process.wait_for_line("draining")
        ledger.let_go()
        # Then
        assert answer.result().text == "hold|a"
    eventually(process.has_ended, STOP_TIMEOUT_S)
    assert process.family() == []


def test_container_runs_torchserves_command_line_in_the_foreground(container):
    # Given the line of TorchServe's documentation for containers, tokens and all
    archive = make_archive(container.store, "m", ECHO)
    words = ["--model-store", str(container.store), "--models", f"m={archive}"]
    keys = {"FERRY_KEY_FILE": str(container.folder / "key_file.json")}
    # When
    process = container.start("torchserve", "--start", "--ncs", *words, environment=keys)
    container.wait_started()
    # Then
    assert container.ask("POST", "predictions/m", data=b"x").status_code == 400
    with requests.Session() as session:
        session.trust_env = False
        found = json.loads((container.folder / "key_file.json").read_text())
        session.headers["Authorization"] = f"Bearer {found['inference']['key']}"
        url = f"http://127.0.0.1:{container.port}/predictions/m"
        assert session.post(url, data=b"x", timeout=60).text == "x"
    assert not process.has_ended()
    assert process.stop(signal.SIGTERM).exit_code == 0


def test_container_stays_as_long_as_the_server_that_a_script_has_left_behind(container):
    # Given one word, as manifests have it; TorchServe's script evaluates what it gets
    archive = make_archive(container.store, "m", ECHO)
    line = f"torchserve --start --ncs --dt --models m={archive} && echo the script has ended"
    # When
    process = container.start(line)
    process.wait_for_line("the script has ended")
    # Then
    assert container.ask("POST", "predictions/m", data=b"hello").text == "hello"
    assert not process.has_ended()
    # And it goes when the server does
    stopped = process.stop(signal.SIGTERM)
    assert (stopped.exit_code, stopped.left_behind) == (0, [])


@pytest.mark.parametrize(
    ("command", "exit_code", "printed"),
    [
        (["torchserve", "--version"], 0, "TorchServe Version is"),
        (["sh", "-c", "echo ran; exit 3"], 3, "ran"),
        (["no-such-program"], 127, "no-such-program: No such file or directory"),
    ],
)
def test_container_runs_other_commands_as_they_are(container, command, exit_code, printed):
    process = container.start(*command)
    eventually(process.has_ended, 30)
    assert process.exit_code() == exit_code
    assert printed in process.log()


def test_container_serves_as_kserve_starts_it(container):
    # Given what its storage initializer mounts: the archives, and a configuration with one port
    models = container.folder / "mnt" / "models"
    for name in ("model-store", "config"):
        (models / name).mkdir(parents=True)
    archive = make_archive(models / "model-store", "mnist", DOUBLING)
    version = {"defaultVersion": True, "marName": archive, "minWorkers": 1, "maxWorkers": 5}
    snapshot = {"name": "startup.cfg", "modelCount": 1, "models": {"mnist": {"1.0": version}}}
    address = f"http://0.0.0.0:{container.port}"
    (models / "config" / "config.properties").write_text(
        f"inference_address={address}\nmanagement_address={address}\n"
        f"metrics_address=http://0.0.0.0:{container.port + 2}\n"
        "grpc_inference_port=7070\ngrpc_management_port=7071\nenable_envvars_config=true\n"
        "install_py_dep_per_model=true\nenable_metrics_api=true\nmetrics_mode=prometheus\n"
        "NUM_WORKERS=1\nnumber_of_netty_threads=4\njob_queue_size=10\n"
        f"model_store={models}/model-store\nmodel_snapshot={json.dumps(snapshot)}\n"
    )
    runtime = yaml.safe_load((DEPLOY / "kserve" / "runtime.yaml").read_text())
    [spec] = runtime["spec"]["containers"]
    arguments = [word.replace("/mnt/models", str(models)) for word in spec["args"]]
    variables = {one["name"]: one["value"] for one in spec["env"]}
    assert variables["FERRY_INFERENCE_ADDRESS"].endswith(f":{spec['ports'][0]['containerPort']}")
    variables |= {
        "TS_SERVICE_ENVELOPE": "kserve",
        "FERRY_INFERENCE_ADDRESS": address,
        "FERRY_MANAGEMENT_ADDRESS": f"http://127.0.0.1:{container.port + 1}",
        "FERRY_METRICS_ADDRESS": f"http://0.0.0.0:{container.port + 2}",
        "LOG_LOCATION": str(container.folder / "logs"),
    }
    del container.environment["TS_CONFIG_FILE"]
    # When
    container.start(*arguments, environment=variables)
    container.wait_started()
    eventually(lambda: container.ask("GET", "v1/models/mnist").json()["ready"] is True, 30)
    # Then
    answer = container.ask("POST", "v1/models/mnist:predict", json={"instances": [1, 2]})
    assert answer.json() == {"predictions": [2, 4]}


def test_vertex_ai_predicts_through_the_routes_that_it_chooses(container):
    # Given
    make_archive(container.store, "m", DOUBLING)
    route = "v1/endpoints/1/deployedModels/2"
    variables = {
        "AIP_HTTP_PORT": str(container.port),
        "AIP_HEALTH_ROUTE": f"/{route}",
        "AIP_PREDICT_ROUTE": f"/{route}:predict",
        "AIP_STORAGE_URI": str(container.store),
        "FERRY_MANAGEMENT_ADDRESS": f"http://127.0.0.1:{container.port + 1}",
        "FERRY_METRICS_ADDRESS": f"http://127.0.0.1:{container.port + 2}",
    }
    # When
    container.start(environment=variables)
    container.wait_started()
    # Then
    eventually(lambda: container.ask("GET", route).status_code == 200, 30)
    answer = container.ask("POST", f"{route}:predict", json={"instances": [1, "a", 2.5]})
    assert answer.json() == {"predictions": [2, "aa", 5.0]}
    # And it is the route itself that answers, not a thread of Flask's
    container.process.wait_for_line('"POST /invocations HTTP/1.1" 200')
    refused = container.ask("POST", f"{route}:predict", json={"instance": [1]})
    assert refused.status_code >= 400
    assert container.process.stop(signal.SIGTERM).exit_code == 0


def test_sagemaker_serves_what_it_has_put_into_its_folder(container):
    # Given
    model = container.folder / "ml" / "model"
    model.mkdir(parents=True)
    path = model / make_archive(model, "m", ECHO)
    zipfile.ZipFile(path).extractall(model)
    path.unlink()
    variables = {
        **sagemaker_variables(container),
        "SAGEMAKER_TS_BATCH_SIZE": "4",
        "SAGEMAKER_TS_MAX_BATCH_DELAY": "7",
    }
    # When
    container.start("serve", environment=variables)
    container.wait_started()
    # Then
    eventually(lambda: container.ask("GET", "ping").status_code == 200, 30)
    assert container.ask("POST", "invocations", data=b"hello").text == "hello"
    described = container.describe("model", 1)
    assert (described["batchSize"], described["maxBatchDelay"]) == (4, 7)
    # And only this machine reaches management
    assert container.ask("GET", "models", 0).status_code == 404


def test_sagemaker_multi_model_endpoint_loads_asks_and_unloads(container):
    # Given
    models = container.folder / "ml" / "models"
    for name in ("a1", "b2"):
        folder = models / name / "model"
        folder.mkdir(parents=True)
        path = folder / make_archive(folder, name, ECHO)
        zipfile.ZipFile(path).extractall(folder)
        path.unlink()
    variables = {**sagemaker_variables(container), "SAGEMAKER_MULTI_MODEL": "true"}
    # When
    container.start("serve", environment=variables)
    container.wait_started()
    # Then
    for name in ("a1", "b2"):
        asked = {"model_name": name, "url": f"{models}/{name}/model"}
        loaded = container.ask("POST", "models", json=asked)
        assert loaded.status_code == 200, loaded.text
    assert container.ask("POST", "models", json=asked).status_code == 409
    listed = container.ask("GET", "models").json()["models"]
    assert [one["modelName"] for one in listed] == ["a1", "b2"]
    assert container.ask("POST", "models/b2/invoke", data=b"hello").text == "hello"
    assert container.ask("DELETE", "models/b2").status_code == 200
    assert container.ask("POST", "models/b2/invoke", data=b"hello").status_code == 404


def sagemaker_variables(container: Container) -> dict[str, str]:
    return {
        "SAGEMAKER_BASE_DIR": str(container.folder / "ml"),
        "SAGEMAKER_BIND_TO_PORT": str(container.port),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{container.port}-{container.port + 2}",
    }
