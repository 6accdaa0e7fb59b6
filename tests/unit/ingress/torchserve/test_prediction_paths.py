import pytest

from ingress.torchserve.routes import PredictionTarget, parse_prediction_path


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/predictions/m", PredictionTarget("m", None, "False", "")),
        ("/predictions/m/", PredictionTarget("m", None, "False", "")),
        ("/predictions/m/1.0", PredictionTarget("m", "1.0", "False", "")),
        ("/predictions/m/1.0/v1/chat/", PredictionTarget("m", "1.0", "False", "v1/chat")),
        ("/explanations/m/2", PredictionTarget("m", "2", "True", "")),
        ("/v1/models/m:predict", PredictionTarget("m", None, "False", None)),
        ("/v1/models/m:explain/", PredictionTarget("m", None, "True", None)),
        ("/v2/models/m/infer", PredictionTarget("m", None, "False", None, is_v2=True)),
        ("/v2/models/m/explain", PredictionTarget("m", None, "True", None, is_v2=True)),
        ("/v2/models/m/versions/1/infer/", PredictionTarget("m", "1", "False", None, is_v2=True)),
        ("/invocations", PredictionTarget("", None, None, None, takes_query=True)),
        ("/models/m/invoke/", PredictionTarget("m", None, None, None, takes_query=True)),
        ("/m/predict", PredictionTarget("m", None, None, None, takes_query=True)),
        ("/m/2.0/predict", PredictionTarget("m", "2.0", None, None, takes_query=True)),
    ],
)
def test_path_names_a_target(path, target):
    assert parse_prediction_path(path) == target


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/predictions",
        "/predictionsx/m",
        "/v1/models/m",
        "/v1/models/m:train",
        "/v2/models/m",
        "/v2/models/m/revisions/1/infer",
        "/invocations/x",
        "/models/m",
        "/predict",
        "/a/b/c/predict",
        "/v2/models/m/infer/x",
    ],
)
def test_path_is_left_to_others(path):
    assert parse_prediction_path(path) is None
