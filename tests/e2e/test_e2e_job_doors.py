"""Jobs through every door, and with every key: one server with tokens, an alias and a proxy."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer, ferry_server

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


@dataclass
class Guarded:
    """Holds the server and its keys."""

    server: FerryServer
    keys: Mapping[str, Any]

    def ask(self, method: str, path: str, key: str = "inference", **options: Any) -> Any:
        """Returns the inference port's answer, or with a path of `management:`, that one's."""
        port, _, rest = path.rpartition(":/")
        base = self.server.management if port == "management" else self.server.inference
        headers = dict(options.pop("headers", {}))
        if key:
            headers["Authorization"] = f"Bearer {self.keys[key]['key']}"
        url = f"{base}/{rest.lstrip('/')}" if port else base + path
        with requests.Session() as session:
            session.trust_env = False
            return session.request(method, url, headers=headers, timeout=40, **options)

    def submit(self, body: str = "x", **headers: str) -> dict[str, Any]:
        answer = self.ask("POST", "/predictions/guarded", data=body, headers=ASYNC | headers)
        assert answer.status_code == 202, answer.text
        job: dict[str, Any] = answer.json()
        return job


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    key_file = folder / "keys.json"
    aliases = "/vertex=/predictions/guarded,/named=/invocations"
    options = ["--key-file", str(key_file), "--path-aliases", aliases]
    with ferry_server(folder, *options) as server:
        keys = json.loads(key_file.read_text())
        server.http.headers["Authorization"] = f"Bearer {keys['management']['key']}"
        server.register(make_archive(server.store, "guarded", {"handler.py": HANDLER}))
        yield Guarded(server, keys)


DOORS = [
    "/predictions/guarded",
    "/predictions/guarded/1.0/tail",
    "/explanations/guarded",
    "/v1/models/guarded:predict",
    "/v1/models/guarded:explain",
    "/v2/models/guarded/infer",
    "/v2/models/guarded/infer binary",
    "/v2/models/guarded/versions/1.0/explain binary",
    "/invocations?model_name=guarded",
    "/named?model_name=guarded",
    "/models/guarded/invoke",
    "/guarded/predict",
    "/vertex",
]


def request_of(door: str, word: str) -> tuple[str, dict[str, str], bytes]:
    """Path, headers and body; the same tensor for all doors."""
    path, _, kind = door.partition(" ")
    tensor = {"name": "x", "shape": [1], "datatype": "BYTES", "data": [word]}
    body = json.dumps({"id": "mine", "inputs": [tensor]}).encode()
    headers = {"Content-Type": "application/json"}
    if kind:
        headers["Inference-Header-Content-Length"] = str(len(body))
    return path, headers, body


def told(answer: requests.Response) -> tuple[int, dict[str, str], bytes]:
    headers = {k.lower(): v for k, v in answer.headers.items() if k.lower() not in OWN}
    return answer.status_code, headers, answer.content


@pytest.mark.parametrize("door", DOORS)
def test_result_is_what_the_door_would_have_answered(guarded, door):
    for word, expected in {"fine": 200, "typed": 201, "raise": 503, "refuse": 418}.items():
        # When
        path, headers, body = request_of(door, word)
        direct = guarded.ask("POST", path, data=body, headers=headers)
        job = guarded.ask("POST", path, data=body, headers=headers | ASYNC)
        assert job.status_code == 202, job.text
        url = f"/jobs/{job.json()['id']}/result"
        result = guarded.ask("GET", url, headers={"Prefer": "wait=30"})
        waited = {"Prefer": "respond-async, wait=30"}
        in_time = guarded.ask("POST", path, data=body, headers=headers | waited)

        # Then
        assert direct.status_code == expected, direct.text
        assert told(result) == told(direct)
        assert in_time.headers.pop("preference-applied") == "wait=30"
        assert told(in_time) == told(direct)
        is_v2_error = "binary" in door and expected >= 400
        assert (b'"error"' in direct.content) is is_v2_error


def test_listing_has_no_bodies(guarded):
    # Given an input that fails, and one that is answered with text
    jobs = [guarded.submit(f"{word} of a client") for word in ("raise", "fine")]
    for job in jobs:
        guarded.ask("GET", f"/jobs/{job['id']}/result", headers={"Prefer": "wait=30"})

    # When
    listed = guarded.ask("GET", "management://jobs", "management")

    # Then
    by_id = {job["id"]: job for job in listed.json()["jobs"]}
    assert [by_id[job["id"]]["status"] for job in jobs] == ["failed", "succeeded"]
    assert "of a client" not in listed.text
    assert "of the handler" not in listed.text
    assert not {"body", "input", "result"} & {name for job in by_id.values() for name in job}
