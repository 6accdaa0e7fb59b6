"""Holds openapi.yaml against the table of routes, and against OpenAPI."""

import re

import pytest
from openapi_spec_validator import validate

from ingress.role import Role
from ingress.torchserve.openapi import (
    api_document,
    model_management_document,
    model_prediction_document,
    operations_of,
)
from ingress.torchserve.routes import ANY, ROUTES

DOCUMENTS = [
    *(api_document([role]) for role in Role),
    api_document(list(Role)),
    model_prediction_document("m"),
    model_management_document("m"),
]


def described(document):
    return {
        (operation["operationId"], path, method)
        for path, method, operation in operations_of(document["paths"])
    }


def method_of(route):
    if route.method == ANY:
        return "get" if route.target is None else "post"
    return route.method.lower()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_is_valid(document):
    validate(document)


def test_document_has_each_row_that_names_an_operation_and_nothing_else():
    rows = {(route.operation, route.path, method_of(route)) for route in ROUTES if route.operation}
    assert described(api_document(list(Role))) == rows


@pytest.mark.parametrize("role", Role)
def test_document_of_a_port_has_the_rows_of_that_port(role):
    rows = {route.operation for route in ROUTES if role in route.ports and route.operation}
    if role is Role.METRICS:
        rows -= {"apiDescription", "api-description"}  # as in TorchServe
    assert {operation_id for operation_id, _, _ in described(api_document([role]))} == rows


def test_operation_has_the_parameters_of_its_path():
    for path, _, operation in operations_of(api_document(list(Role))["paths"]):
        names = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
        assert names == re.findall(r"{(\w+)}", path), path


def test_applications_have_the_rules_of_the_table_and_no_others(ingress):
    for role, app in ingress.apps.items():
        # Given
        rows = {
            f"{route.method} {route.path}"
            for route in ROUTES
            if role in route.ports and route.target is None and route.view != "token.renew_key"
        }
        # When / Then
        assert {rule.endpoint for rule in app.url_map.iter_rules()} == rows
