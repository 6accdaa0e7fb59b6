"""B3, B6, B7 and B14 over HTTP: bodies and names that mean no good."""

import threading

import pytest

from batching.store.keys import PERMANENT
from ingress.predictions import prediction
from ingress.torchserve.payload import read_request
from ingress.torchserve.routes import parse_prediction_path
from tests.support import eventually, processor_time
from tests.unit.ingress.sockets import assert_tells_nothing, awaited

pytestmark = pytest.mark.slow  # whole servers on real sockets

JSON = {"Content-Type": "application/json"}

BAD_JSON = {
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "empty": b"",
    "not utf-8": b'{"url": "\xff"}',
    "list": b"[]",
    "word": b"NaN",
    "long number": b"9" * 50_000,
    "trailing": b'{"url": "x"} {}',
}
ODD_JSON = {
    # How deep is too deep depends on Python: 3.14 takes what the thread's stack does.
    "deep objects": b'{"url":' * 10_000 + b"1" + b"}" * 10_000,
    "nan": b'{"url": NaN}',
    "infinite": b'{"url": "good.mar", "batch_size": 1e999}',
    "twice": b'{"url": "good.mar", "url": "bad.mar"}',
    "lone surrogate": b'{"url": "\\ud800"}',
    "nul": b'{"url": "good\\u0000.mar"}',
    "long text": b'{"url": "' + b"x" * 90_000 + b'"}',
    "object": b'{"url": {"a": 1}}',
    "long name": b'{"url": "good.mar", "model_name": "' + b"n" * 80_000 + b'"}',
    "name with braces": b'{"url": "good.mar", "model_name": "{m:other}"}',
    "handler with dots": b'{"url": "bad.mar", "handler": "../../x.py:run"}',
    "runtime": b'{"url": "good.mar", "runtime": "ruby"}',
}


@pytest.fixture
def manager(ingress, node):
    ingress.archives.add("good.mar", "good")
    return ingress


@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON)
def test_b03_management_body_that_is_no_object_is_a_bad_request(manager, body):
    # When: the ingress and its client run in this process
    with processor_time(0.1):
        answer = manager.manage("POST", "/models", data=body, headers=JSON)
    # Then
    assert (answer.status_code, answer.json()["type"]) == (400, "BadRequestException")
    assert sorted(manager.registry.snapshot()) == []


@pytest.mark.parametrize("body", ODD_JSON.values(), ids=ODD_JSON)
def test_b03_management_body_with_odd_values_is_never_a_server_error(manager, body):
    # When
    answer = manager.manage("POST", "/models", data=body, headers=JSON)
    # Then: "infinite" is no Java integer, which means the default
    assert answer.status_code in (200, 400, 404)
    names = set(manager.registry.snapshot())
    assert names <= {"good"}
    assert (answer.status_code == 200) == (names == {"good"})


def test_b03_inference_body_reaches_the_handler_byte_for_byte(manager):
    # Given
    manager.register("echo")
    for name, body in {**BAD_JSON, **ODD_JSON}.items():
        # When
        answer = manager.predict("/predictions/echo", data=body, headers=JSON)
        # Then: what it means is decided in the worker
        assert answer.status_code == 200, name
        assert answer.content.endswith(b"|" + body), name


MULTIPART = {
    "1900 parts": b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 1900,
    "no end": b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\nx',
    "returns only": b"--B" + b"\r" * 90_000,
    "long header": b"--B\r\nX: " + b"a" * 90_000 + b"\r\n\r\nx\r\n--B--",
    "nothing": b"--",
}


@pytest.mark.parametrize(
    "boundary", ["; boundary=B", "; boundary=" + "x" * 5000, "", "; boundary="]
)
def test_b06_hostile_form_is_a_bad_request_soon(manager, boundary):
    # Given
    manager.register("echo")
    headers = {"Content-Type": f"multipart/form-data{boundary}"}
    for name, body in MULTIPART.items():
        # When
        with processor_time(0.2):
            answer = manager.predict("/predictions/echo", data=body, headers=headers)
        # Then
        assert (answer.status_code, answer.json()["type"]) == (400, "BadRequestException"), name


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded",
        "Application/X-WWW-Form-Urlencoded ; charset=utf-8",
        "multipart/form-data; boundary=B",
        "Multipart/Form-Data; boundary=B",
    ],
)
def test_b06_large_form_is_parsed_outside_of_the_loop(manager, content_type, monkeypatch):
    # Given
    manager.register("echo")
    services, target = manager.services, parse_prediction_path("/predictions/echo")
    readers = []

    def read(*arguments, **options):
        readers.append(threading.get_ident())
        return read_request(*arguments, **options)

    async def thread():
        return threading.get_ident()

    monkeypatch.setattr(prediction, "read_request", read)
    body = b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"%41" * 100_000
    # When
    answer = awaited(services, target, {"content-type": content_type}, body + b"\r\n--B--")
    # Then
    assert answer.status == 200
    assert len(readers) == 1
    assert readers[0] != services.on_loop(thread())


NAMES = [
    "../../x",
    "%2e%2e%2f%2e%2e%2fx",
    "..%5c..%5cx",
    "a%00b",
    "a%20b",
    "-a",
    "%7Bm:echo:1.0%7D:q",
    "*",
    "a" * 300,
    "ech%D0%BE",
    "echo%0d%0aX:y",
    ".echo",
    "%25%32%65",
]


@pytest.mark.parametrize("name", NAMES)
def test_b07_impossible_name_is_not_found_everywhere_and_makes_no_key(manager, name):
    # Given
    client = manager.registry._client
    known = set(client.keys())
    asked = [
        (manager.predict, ("/predictions/{}", "POST")),
        (manager.predict, ("/predictions/{}/1.0", "POST")),
        (manager.predict, ("/predictions/echo/{}", "POST")),
        (manager.predict, ("/v1/models/{}:predict", "POST")),
        (manager.predict, ("/v2/models/{}/infer", "POST")),
        (manager.predict, ("/predictions/{}", "OPTIONS")),
        (manager.manage, ("GET", "/models/{}")),
        (manager.manage, ("GET", "/models/{}/all")),
        (manager.manage, ("PUT", "/models/{}?min_worker=1")),
        (manager.manage, ("DELETE", "/models/{}")),
        (manager.manage, ("DELETE", "/models/echo/{}")),
        (manager.manage, ("PUT", "/models/{}/1.0/set-default")),
        (manager.manage, ("PUT", "/models/echo/{}/set-default")),
    ]
    for ask, arguments in asked:
        # When
        answer = ask(*(part.replace("{}", name) for part in arguments))
        # Then
        assert answer.status_code in (400, 404, 405), arguments
    # The node of this test goes on beating.
    made = set(client.keys()) - known
    assert {key.decode() for key in made} <= PERMANENT | {"{ferry}:nodes"}


def test_b14_unforeseen_failure_tells_nothing_but_an_id_that_is_in_the_log(
    manager, monkeypatch, caplog
):
    # Given
    def fail(*_, **__):
        raise RuntimeError('File "/home/me/secret.py", line 3: redis://user:password@host')

    # Of this ingress: the node of the test has a registry of its own.
    monkeypatch.setattr(manager.registry, "snapshot", fail)
    monkeypatch.setattr(manager.services.predictor, "known", fail)
    # When
    for answer in (manager.manage("GET", "/models"), manager.predict("/predictions/x")):
        # Then
        assert answer.status_code == 500
        assert answer.json()["message"] == "Internal server error."
        assert "secret" not in answer.text
        said = f"request={answer.headers['x-request-id']}"
        eventually(lambda said=said: said in caplog.text)


def test_b14_scan_of_every_error_finds_what_it_should():
    # The scan itself runs on each error that any test of the ingress sees.
    leaks = ["Traceback (most recent", "see /tmp/x", "key {model2:echo:1.0}:queue", "redis://host"]
    for text in (*leaks, "<Model object at 0x7f>", "Werkzeug/3.1"):
        with pytest.raises(AssertionError):
            assert_tells_nothing(text)
        assert_tells_nothing(text, asked=text)
