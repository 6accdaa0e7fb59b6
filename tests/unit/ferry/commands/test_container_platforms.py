"""What the variables of Vertex AI and SageMaker become."""

import json
from pathlib import Path

import pytest

from batching.settings.loading import load_settings
from batching.settings.settings import SettingsError
from ferry.commands.container import platform_variables
from tests.e2e.archives import make_archive

HANDLER = {"handler.py": "def handle(data, context):\n    return data\n"}
VERTEX = {"AIP_HTTP_PORT": "7080"}


def settings_of(environment, properties=None):
    """Returns the settings that the server gets, if its config.properties says no more."""
    return load_settings(
        environment={**environment, **platform_variables(environment, properties or {})}
    )[0]


@pytest.fixture
def sagemaker(tmp_path: Path):
    """Where SageMaker puts a model's files."""
    (tmp_path / "model").mkdir()
    return {"SAGEMAKER_BASE_DIR": str(tmp_path), "FERRY_WORK_DIR": str(tmp_path / "work")}


def test_other_machines_have_no_platform(tmp_path):
    assert platform_variables({"PATH": "/bin", "AIP_PREDICT_ROUTE": "/p"}, {}) == {}


@pytest.mark.parametrize(
    ("port", "predict", "health", "aliases"),
    [
        (
            "7080",
            "/v1/endpoints/1/deployedModels/2:predict",
            "/v1/endpoints/1/deployedModels/2",
            {
                "/v1/endpoints/1/deployedModels/2": "/readyz",
                "/v1/endpoints/1/deployedModels/2:predict": "/invocations",
            },
        ),
        # Routes that are there already stay as they are.
        ("7080", "/predictions/m", "/ping", {}),
        ("7080", "/v1/models/m:predict", "/readyz", {}),
        ("8081", "/invocations", "", {}),
        ("8081", "/m/predict", "/health", {"/m/predict": "/invocations", "/health": "/readyz"}),
    ],
)
def test_vertex_reaches_predictions_and_readiness_only(port, predict, health, aliases):
    # When
    settings = settings_of(
        {"AIP_HTTP_PORT": port, "AIP_PREDICT_ROUTE": predict, "AIP_HEALTH_ROUTE": health}
    )
    # Then
    assert settings.aliases() == aliases
    addresses = settings.addresses()
    assert addresses.pop("inference") == f"http://0.0.0.0:{port}"
    private = [number for number in (8081, 8082, 8083) if number != int(port)][:2]
    assert list(addresses.values()) == [f"http://127.0.0.1:{number}" for number in private]


@pytest.mark.parametrize(
    ("more", "properties", "envelope"),
    [
        ({}, {}, "json"),
        ({"FERRY_SERVICE_ENVELOPE": ""}, {}, ""),
        ({}, {"service_envelope": "kserve"}, ""),
        ({"TS_SERVICE_ENVELOPE": "body"}, {}, ""),
    ],
)
def test_vertex_instances_are_taken_apart_unless_the_operator_says_otherwise(
    more, properties, envelope
):
    assert settings_of({**VERTEX, **more}, properties).service_envelope == envelope


def test_vertex_storage_is_a_folder_of_archives(tmp_path):
    # Given
    make_archive(tmp_path, "a", HANDLER)
    make_archive(tmp_path, "b", HANDLER)
    (tmp_path / "readme").mkdir()
    # When
    settings = settings_of({**VERTEX, "AIP_STORAGE_URI": str(tmp_path)})
    # Then
    assert (settings.model_store, settings.load_models) == (tmp_path, "a-1.0.mar,b-1.0.mar")


def test_vertex_bucket_is_refused_with_what_to_do():
    with pytest.raises(SettingsError, match=r"gs://b/m: .* folders, not buckets.*vertex-ai\.md"):
        settings_of({**VERTEX, "AIP_STORAGE_URI": "gs://b/m"})


def test_sagemaker_reaches_predictions_only(sagemaker):
    # Given
    make_archive(Path(sagemaker["SAGEMAKER_BASE_DIR"]) / "model", "m", HANDLER)
    more = {"SAGEMAKER_BIND_TO_PORT": "9000", "SAGEMAKER_SAFE_PORT_RANGE": "8999-9003"}
    # When
    settings = settings_of({**sagemaker, **more})
    # Then
    assert settings.addresses() == {
        "inference": "http://0.0.0.0:9000",
        "management": "http://127.0.0.1:8999",
        "metrics": "http://127.0.0.1:9001",
    }
    assert settings.load_models == "m-1.0.mar"
    assert settings.allow_open_management is False


def test_sagemaker_settings_are_those_of_its_one_model(tmp_path, sagemaker):
    # Given
    make_archive(tmp_path / "model", "m", HANDLER, version="2.1")
    given = {
        "SAGEMAKER_TS_BATCH_SIZE": "8",
        "SAGEMAKER_TS_MAX_BATCH_DELAY": "50",
        "SAGEMAKER_TS_MIN_WORKERS": "2",
        "SAGEMAKER_TS_RESPONSE_TIMEOUT": "60",
    }
    # When
    settings = settings_of({**sagemaker, **given})
    # Then
    assert json.loads(settings.model_settings) == {
        "m": {
            "2.1": {
                "batchSize": 8,
                "maxBatchDelay": 50,
                "minWorkers": 2,
                "maxWorkers": 2,
                "responseTimeout": 60,
            }
        }
    }


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"SAGEMAKER_BIND_TO_PORT": "http"}, "SAGEMAKER_BIND_TO_PORT='http' is not a whole number"),
        ({"SAGEMAKER_SAFE_PORT_RANGE": "8000-8001"}, "fewer than three ports"),
        ({"SAGEMAKER_SAFE_PORT_RANGE": "8000"}, "SAGEMAKER_SAFE_PORT_RANGE='' is not a whole"),
        ({"SAGEMAKER_SAFE_PORT_RANGE": "a-b"}, "SAGEMAKER_SAFE_PORT_RANGE='a' is not a whole"),
        ({"SAGEMAKER_TS_BATCH_SIZE": "many"}, "SAGEMAKER_TS_BATCH_SIZE='many' is not a whole"),
    ],
)
def test_sagemaker_variable_that_cannot_be_used_is_named(tmp_path, sagemaker, variables, complaint):
    make_archive(tmp_path / "model", "m", HANDLER)
    with pytest.raises(SettingsError, match=complaint):
        settings_of({**sagemaker, **variables})


def test_script_mode_is_refused_with_what_to_do(tmp_path, sagemaker):
    (tmp_path / "model" / "model.pth").touch()
    with pytest.raises(SettingsError, match=r"neither a \.mar nor .* torch-model-archiver"):
        settings_of(sagemaker)
