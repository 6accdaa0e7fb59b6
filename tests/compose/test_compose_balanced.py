"""Several ingresses behind one port."""

import base64
import json

import pytest

from tests.chaos.crowd import Crowd
from tests.compose.stack import HTTP_S
from tests.support import eventually

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


def test_file_runs_as_a_batch_whichever_ingress_has_it(balanced):
    # Given a file of three lines, which the image's user could write to the new volume
    balanced.serve("bulky")
    here, there = (management_of(one) for one in balanced.containers("ingress"))
    url = "/predictions/bulky"
    line = {"method": "POST", "url": url, "body_b64": base64.b64encode(b"echo").decode()}
    lines = [json.dumps({**line, "custom_id": str(n)}) for n in range(3)]
    file = balanced.http.post(
        f"{here}/v1/files",
        data={"purpose": "batch"},
        files={"file": ("in.jsonl", "\n".join(lines))},
        timeout=HTTP_S,
    ).json()
    # When the other ingress makes a batch of it
    asked = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
    made = balanced.http.post(f"{there}/v1/batches", json=asked, timeout=HTTP_S).json()

    def ended():
        batch = balanced.http.get(f"{here}/v1/batches/{made['id']}", timeout=HTTP_S).json()
        return batch["status"] == "completed" and batch

    batch = eventually(ended, 30)
    # Then either has its output, also by the balancer's management port
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    path = f"v1/files/{batch['output_file_id']}/content"
    outputs = {
        balanced.http.get(f"{base}/{path}", timeout=HTTP_S).text
        for base in (here, there, balanced.management)
    }
    [output] = outputs
    answers = [json.loads(line) for line in output.splitlines()]
    found = {one["custom_id"]: one["response"]["body"] for one in answers}
    assert found == {str(n): "echo" for n in range(3)}


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
