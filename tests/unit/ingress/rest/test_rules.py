import pytest
from flask import Flask

from ingress.rest.rules import add_routes
from ingress.torchserve.route import Route
from ingress.torchserve.routes import EVERYWHERE, ROUTES


def test_row_without_a_method_is_named():
    route = Route("GET", "/models/{model_name}/dogs", "list_dogs")
    with pytest.raises(LookupError, match=r"GET /models/{model_name}/dogs: .* list_dogs"):
        add_routes(Flask(__name__), object(), [route])


def test_applications_have_the_rules_of_the_table_and_no_others(ingress):
    for role, app in ingress.apps.items():
        # Given
        routes = [one for one in (*EVERYWHERE, *ROUTES[role]) if one.target is None]
        # When
        found = {
            rule.endpoint.rpartition(".")[2]
            for rule in app.url_map.iter_rules()
            if "<path:_>" not in rule.rule  # refuses what only looks like a prediction
        }
        # Then
        wanted = {f"{one.method} {one.path}" for one in routes if one.view != "renew"}
        assert found == {name.replace(".", "_") for name in wanted}
