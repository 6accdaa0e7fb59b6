"""Several ingresses behind one port."""

import pytest

from tests.chaos.crowd import Crowd

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]


def management_of(ingress):
    return f"http://127.0.0.1:{ingress.port(8081)}"


def test_any_ingress_answers_behind_the_one_port(balanced):
    # Given a model that one ingress has registered
    balanced.serve("shared")
    ingresses = balanced.containers("ingress")
    # When
    with Crowd(balanced.port) as crowd:
        sent = crowd.ask("shared", [f"balanced {n}" for n in range(200)])
    descriptions = [balanced.describe("shared", management_of(one)) for one in ingresses]
    counted = [served_by(balanced, one) for one in ingresses]
    # Then each was answered by the one that took it, and all know the same
    assert {(one.status, one.fault) for one in sent} == {(200, "")}
    assert all(one.answer == one.body for one in sent)
    assert len(descriptions) == 2
    assert descriptions[0] == descriptions[1]
    assert sum(counted) == 200
    assert min(counted) > 20, counted


def test_ingress_that_leaves_is_not_missed(balanced):
    # Given
    balanced.serve("lasting")
    with Crowd(balanced.port) as crowd:
        # When
        with crowd.flow("lasting", 40, "leave"):
            balanced.compose("up", "-d", "--scale", "ingress=1")
        # Then
        assert {(one.status, one.fault) for one in crowd.log} == {(200, "")}
        assert len(crowd.log) > 20
    balanced.compose("up", "-d", "--scale", "ingress=2")


def test_balancer_says_that_no_ingress_is_there(balanced):
    # Given
    balanced.compose("stop", "ingress")
    # When
    url = f"http://127.0.0.1:{balanced.port}/predictions/shared"
    answer = balanced.http.post(url, data=b"x", timeout=10)
    # Then
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.json()["type"] == "ServiceUnavailableException"
    balanced.compose("start", "ingress")


def served_by(stack, ingress):
    text = stack.http.get(f"http://127.0.0.1:{ingress.port(8082)}/metrics", timeout=10).text
    lines = [line for line in text.splitlines() if line.startswith("ferry_requests_total")]
    return sum(float(line.split()[-1]) for line in lines if 'model="shared"' in line)
