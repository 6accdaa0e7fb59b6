"""Jobs through every door, and with every key: one server with tokens and aliases."""

import json

import pytest
import requests

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import ferry_server

pytestmark = pytest.mark.slow

HANDLER = """
from ts.utils.util import PredictionException

def handle(data, context):
    return data and [answer(str(row), context) for row in data]


def answer(text, context):
    if "raise" in text:
        raise ValueError("a secret of the handler")
    if "refuse" in text:
        raise PredictionException("the handler refuses", 418)
    if "typed" in text:
        context.set_response_content_type(0, "text/html")
        context.set_response_status(201, "Made", 0)
    return "fine"
"""
ASYNC = {"Prefer": "respond-async"}
# What differs between two answers to the same request.
OWN = {"x-request-id", "date"}
DOORS = [
    "/predictions/worked",
    "/predictions/worked/1.0/tail",
    "/explanations/worked",
    "/v1/models/worked:predict",
    "/v1/models/worked:explain",
    "/v2/models/worked/infer",
    "/v2/models/worked/infer binary",
    "/v2/models/worked/versions/1.0/explain binary",
    "/invocations?model_name=worked",
    "/named?model_name=worked",
    "/models/worked/invoke",
    "/worked/predict",
    "/vertex",
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Runs a server with tokens and aliases; its keys are in `keys.json`."""
    folder = tmp_path_factory.mktemp("guarded")
    aliases = "/vertex=/predictions/worked,/named=/invocations"
    options = ("--key-file", str(folder / "keys.json"), "--path-aliases", aliases)
    with ferry_server(folder, *options) as running:
        running.keys = json.loads((folder / "keys.json").read_text())
        running.http.headers["Authorization"] = f"Bearer {running.keys['management']['key']}"
        running.register(make_archive(running.store, "worked", {"handler.py": HANDLER}))
        yield running


@pytest.fixture(scope="module")
def ask(guarded):
    """Asks the inference port with its key, or at a whole URL with that of the role."""
    with requests.Session() as session:
        session.trust_env = False

        def ask_at(method, place, role="inference", headers=(), **options):
            url = place if "://" in place else guarded.inference + place
            token = {"Authorization": f"Bearer {guarded.keys[role]['key']}"}
            return session.request(
                method, url, headers=token | dict(headers), timeout=40, **options
            )

        yield ask_at


def told(answer):
    headers = {k.lower(): v for k, v in answer.headers.items() if k.lower() not in OWN}
    return answer.status_code, headers, answer.content


@pytest.mark.parametrize("door", DOORS)
def test_result_is_what_the_door_would_have_answered(ask, door):
    path, _, kind = door.partition(" ")
    for word, expected in {"fine": 200, "typed": 201, "raise": 503, "refuse": 418}.items():
        # Given the same tensor for all doors
        tensor = {"name": "x", "shape": [1], "datatype": "BYTES", "data": [word]}
        body = json.dumps({"id": "mine", "inputs": [tensor]}).encode()
        headers = {"Content-Type": "application/json"}
        if kind:
            headers["Inference-Header-Content-Length"] = str(len(body))
        # When
        direct = ask("POST", path, data=body, headers=headers)
        job = ask("POST", path, data=body, headers=headers | ASYNC)
        assert job.status_code == 202, job.text
        result = ask("GET", job.json()["result_url"], headers={"Prefer": "wait=30"})
        waited = {"Prefer": "respond-async, wait=30"}
        in_time = ask("POST", path, data=body, headers=headers | waited)

        # Then
        assert direct.status_code == expected, direct.text
        assert told(result) == told(direct)
        assert in_time.headers.pop("preference-applied") == "wait=30"
        assert told(in_time) == told(direct)
        is_v2_error = "binary" in door and expected >= 400
        assert (b'"error"' in direct.content) is is_v2_error


def test_listing_has_no_bodies(ask, guarded):
    # Given an input that fails, and one that is answered with text
    jobs = []
    for word in ("raise", "fine"):
        text = f"{word} of a client"
        jobs.append(ask("POST", "/predictions/worked", data=text, headers=ASYNC).json())
        ask("GET", jobs[-1]["result_url"], headers={"Prefer": "wait=30"})

    # When
    listed = ask("GET", f"{guarded.management}/jobs", "management")

    # Then
    by_id = {job["id"]: job for job in listed.json()["jobs"]}
    assert [by_id[job["id"]]["status"] for job in jobs] == ["failed", "succeeded"]
    assert "of a client" not in listed.text
    assert "of the handler" not in listed.text
    assert not {"body", "input", "result"} & {name for job in by_id.values() for name in job}
