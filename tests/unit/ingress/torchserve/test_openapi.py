import pytest
from openapi_spec_validator import validate

from ingress.role import Role
from ingress.torchserve.openapi import (
    api_document,
    model_management_document,
    model_prediction_document,
)

DOCUMENTS = [
    *(api_document([role]) for role in Role),
    api_document(list(Role)),
    model_prediction_document("m"),
    model_management_document("m"),
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_is_valid(document):
    validate(document)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_operations_of_a_document_have_their_own_ids(document):
    operations = [op for methods in document["paths"].values() for op in methods.values()]
    assert len({op["operationId"] for op in operations}) == len(operations)


def test_generated_clients_can_send_a_body_and_read_the_answer():
    # Given
    paths = api_document([Role.INFERENCE])["paths"]
    # When / Then
    for path, kind in (
        ("/predictions/{model_name}", "application/octet-stream"),
        ("/predictions/{model_name}/{model_version}", "application/octet-stream"),
        ("/v1/models/{model_name}:predict", "application/json"),
        ("/v2/models/{model_name}/infer", "application/json"),
    ):
        operation = paths[path]["post"]
        assert list(operation["requestBody"]["content"]) == [kind]
        assert list(operation["responses"]["200"]["content"]) == [kind]


def test_parameters_have_the_types_that_clients_of_torchserve_know():
    # Given
    operations = api_document([Role.MANAGEMENT])["paths"]["/models"]
    # When
    types = {one["name"]: one["schema"]["type"] for one in operations["post"]["parameters"]}
    # Then
    assert {types[name] for name in ("batch_size", "initial_workers", "max_batch_delay")} == {
        "integer"
    }
    assert (types["synchronous"], types["url"]) == ("boolean", "string")
