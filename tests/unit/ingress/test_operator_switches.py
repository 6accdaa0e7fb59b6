"""Settings that an operator of TorchServe switches parts of the HTTP interface with."""

from dataclasses import replace

import pytest

from ingress.rest.app import create_app
from ingress.role import Role
from tests.unit.ingress.sockets import changed

REFUSED = "Requested method is not allowed, please refer to API document."


def client(ingress, role, **settings):
    services = changed(ingress.services, settings=replace(ingress.services.settings, **settings))
    return create_app(services, [role]).test_client()


def test_aliases_are_further_paths_of_routes(echo):
    # Given
    inference = client(echo, Role.INFERENCE, path_aliases="/m:predict=/predictions/echo, /=/ping")
    # When / Then
    for path in ("/m:predict", "/m:predict/", "/predictions/echo"):
        assert inference.post(path, data=b"x").get_data() == b"body:|x", path
    assert inference.get("/").get_json() == {"status": "Healthy"}
    # And they are no paths of another port's
    manager = client(echo, Role.MANAGEMENT, path_aliases="/m:predict=/models")
    assert manager.get("/m:predict").status_code == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/models"), ("DELETE", "/models/echo")])
def test_model_api_is_refused_as_in_torchserve_when_it_is_off(ingress, method, path):
    # Given
    ingress.register("echo", min_worker=0)
    # When
    answer = client(ingress, Role.MANAGEMENT, enable_model_api=False).open(path, method=method)
    # Then
    assert answer.status_code == 405
    assert answer.get_json()["type"] == "MethodNotAllowedException"
    assert answer.get_json()["message"] == REFUSED
    assert sorted(ingress.registry.snapshot()) == ["echo"]


@pytest.mark.usefixtures("node")
def test_scaling_and_describing_work_when_the_model_api_is_off(ingress):
    # Given
    ingress.register("echo", min_worker=0)
    manager = client(ingress, Role.MANAGEMENT, enable_model_api=False)
    # When / Then
    assert manager.put("/models/echo?min_worker=1").status_code == 202
    assert manager.get("/models/echo").status_code == 200


PAGE = "https://page.example"


@pytest.mark.parametrize(
    ("allowed", "origin", "status"),
    [
        *(("", origin, 403) for origin in (PAGE, "http://127.0.0.1:8081", "null")),
        *((allowed, PAGE, 403) for allowed in ("*", "https://other.example")),
        (PAGE, PAGE, 200),
    ],
)
def test_web_page_changes_models_only_when_its_origin_is_named(ingress, allowed, origin, status):
    # Given
    ingress.register("echo", min_worker=0)
    manager = client(ingress, Role.MANAGEMENT, cors_allowed_origin=allowed)
    # When
    registered = manager.post("/models?url=echo.mar", headers={"Origin": origin})
    answer = manager.delete("/models/echo", headers={"Origin": origin})
    # Then
    assert answer.status_code == status
    assert (registered.status_code == 403) == (status == 403)
    assert ("echo" in ingress.registry.snapshot()) == (status == 403)


def test_nodes_that_run_are_listed_workers_or_not(ingress, request):
    # Given
    manager = client(ingress, Role.MANAGEMENT)
    before = manager.get("/nodes").get_json()
    request.getfixturevalue("node")
    # When
    found = manager.get("/nodes").get_json()
    # Then
    assert before == []
    started = "2026-01-01T00:00:00.000Z"
    assert found == [{"node": "node-a", "host": "host", "pid": 1, "startTime": started}]
