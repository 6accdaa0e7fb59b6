"""What the image `server` starts where the variables of Vertex AI or SageMaker are set."""

import signal
import zipfile

import pytest

from tests.e2e.archives import make_archive
from tests.e2e.container_process import DOUBLING, ECHO, Container
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


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
