"""Every row of the table of models in Python, on a real server: what comes in, what goes out."""

import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image

from tests.e2e.ferry_process import ferry_server
from tests.support import eventually
from workers.machine import list_gpus

pytestmark = pytest.mark.slow

ZOO = Path(__file__).with_name("zoo.py")
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
PLAIN, JPEG = {"content-type": "text/plain"}, {"content-type": "image/jpeg"}
# In the head of a .npy file, in the place of "(2,), }" and 12 spaces.
HUGE = b"(999999999999,), }" + b" "


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A server that shows tracebacks, as `ferry serve` does, and registers models when asked."""
    folder = tmp_path_factory.mktemp("zoo")
    unloaded = {"UNLOADED": str(folder / "unloaded")}
    with ferry_server(folder, "--show-tracebacks", environment=unloaded) as running:
        yield running


@pytest.fixture(scope="module")
def ask(zoo):
    """Asks a model of the zoo, which is registered with the first question."""
    served = set()

    def ask_one(name, body=b"", *, config=None, **options):
        if name not in served:
            served.add(name)
            register(zoo, name, **(config or {}))
        return zoo.predict(name, body, **options)

    return ask_one


def put(store, name, target=f"{ZOO}:{{}}", **config):
    """Writes the folder of a model that is served from its file."""
    folder = store / name / "MAR-INF"
    folder.mkdir(parents=True)
    model = {"modelName": name, "handler": "python_model", "target": target.format(name)}
    model |= {"modelVersion": "1.0", "configFile": "model-config.yaml"}
    (folder / "MANIFEST.json").write_text(json.dumps({"runtime": "python", "model": model}))
    defaults = {"batchSize": 32, "maxBatchDelay": 10, "batchPolicy": "adaptive"}
    (folder.parent / "model-config.yaml").write_text(json.dumps({**defaults, **config}))


def register(server, name, **config):
    put(server.store, name, **config)
    server.register(name)


def picture(width=8, height=4, kind="JPEG", **options):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, kind, **options)
    return buffer.getvalue()


def npy(values, kind=None):
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values, kind))
    return buffer.getvalue()


POINT = b'{"x": 1, "y": 2}'
IN_BASE64 = base64.b64encode(picture())
TEXT, BYTES, IS_JSON = "text/plain; charset=utf-8", "application/octet-stream", JSON["content-type"]


@pytest.mark.parametrize(
    ("model", "sent", "kind", "expected"),
    [
        # Without annotation a row is what it looks like.
        ("untyped", {"body": b"[1, 2]"}, TEXT, b"list"),
        ("untyped", {"body": b'{"a": "1+1&b=%41"}', "headers": PLAIN}, TEXT, b"dict"),
        ("untyped", {"body": b"[1, 2]", "headers": FORM}, TEXT, b"list"),
        ("untyped", {"body": b"7"}, TEXT, b"int"),
        ("untyped", {"body": picture(), "headers": JPEG}, TEXT, b"Image"),
        ("untyped", {"body": picture()}, TEXT, b"bytes"),
        ("untyped", {"body": b"hello"}, TEXT, b"bytes"),
        ("untyped", {"files": {"a": b"1", "b": b"x"}}, TEXT, b"dict"),
        ("raw", {"body": b"abc"}, BYTES, b"cba"),
        ("raw", {"body": b"abc", "headers": JSON}, BYTES, b"cba"),
        ("raw", {"files": {"data": b"abc"}}, BYTES, b"cba"),
        ("raw", {"files": {"any": b"abc"}}, BYTES, b"cba"),
        (
            "shout",
            {"body": "grüße & co=1".encode(), "headers": FORM},
            TEXT,
            b"GR\xc3\x9cSSE & CO=1",
        ),
        ("shout", {"body": b"hello"}, TEXT, b"HELLO"),
        ("shout", {"body": b'"hello"', "headers": JSON}, TEXT, b"HELLO"),
        ("shout", {"body": b"data=hi+there", "headers": FORM}, TEXT, b"HI THERE"),
        ("keys", {"body": b'{"b": 1, "a": 2}'}, IS_JSON, b'["a","b"]'),
        ("values", {"body": b'[1, {"a": null}]'}, IS_JSON, b'[1,{"a":null}]'),
        ("points", {"body": POINT}, IS_JSON, b'{"x":2,"y":1}'),
        ("points", {"body": {"x": "3"}}, IS_JSON, b'{"x":0,"y":3}'),  # a form's numbers are text
        ("names", {"body": b'{"name": "Ann"}'}, TEXT, b"Ann"),
        ("people", {"body": b'{"age": 1}'}, IS_JSON, b'{"age":2}'),
        ("arrays", {"body": b"[[1, 2], [3, 4]]"}, IS_JSON, b"[10,2]"),
        ("arrays", {"body": npy([[1.5, 2.5]])}, IS_JSON, b"[4.0,2.0]"),
        ("arrays", {"body": npy(np.asfortranarray(np.ones((2, 3))))}, IS_JSON, b"[6.0,2.0]"),
        (
            "captions",
            {"body": {"caption": "ab", "times": "2"}, "files": {"image": picture()}},
            IS_JSON,
            b'{"text":"abab","width":8}',
        ),
        (
            "captions",
            {"body": b'{"image": "' + IN_BASE64 + b'", "caption": "c"}'},
            IS_JSON,
            b'{"text":"c","width":8}',
        ),
    ],
)
def test_body_becomes_the_row_that_is_annotated(ask, model, sent, kind, expected):
    answer = ask(model, **sent)
    assert (answer.status_code, answer.content) == (200, expected)
    assert answer.headers["content-type"] == kind


@pytest.mark.parametrize(
    ("model", "sent", "words"),
    [
        ("untyped", {"body": b"[1, 2", "headers": FORM}, "The body is not the JSON that is wanted"),
        ("untyped", {"body": b'{"a": 1,}', "headers": JSON}, "not the JSON that is wanted"),
        ("shout", {"body": b"\xff\xfe"}, "JSON string"),
        ("shout", {"body": b"[1]", "headers": JSON}, "JSON string"),
        ("shout", {"body": b'"open', "headers": JSON}, "JSON string"),
        ("shout", {"body": b"1", "headers": JSON}, "JSON string"),
        ("keys", {"body": b"[1]"}, "Expected `object`, got `array`"),
        ("values", {"body": b"[1,"}, ""),
        ("points", {"body": b'{"x": "one"}'}, "Expected `int`, got `str` - at `$.x`"),
        ("points", {"body": b"{}"}, "missing required field `x`"),
        ("names", {"body": b'{"nam": "Ann"}'}, "name"),
        ("people", {"body": b'{"age": "old"}'}, "at `$.age`"),
        ("thumbnails", {"body": b"no image"}, "Input is not a readable image"),
        ("thumbnails", {"body": picture()[:100]}, "Input is not a readable image"),
        ("thumbnails", {"body": picture(8200, 8200, "PNG")}, "Input is not a readable image"),
        ("arrays", {"body": b"[[1, 2], [3]]"}, ""),
        ("arrays", {"body": b'["a"]'}, ""),
        ("arrays", {"body": b"{}"}, ""),
        ("arrays", {"body": npy([1, 2])[:-1]}, ".npy"),
        ("arrays", {"body": npy([1, 2]) + b"x"}, ".npy"),
        ("arrays", {"body": b"\x93NUMPY"}, ".npy"),
        # A pickle within, which nothing runs, and a head that says a terabyte.
        ("arrays", {"body": npy([{}], object)}, ".npy"),
        ("arrays", {"body": npy([0, 0]).replace(b"(2,), }" + 12 * b" ", HUGE)}, ".npy"),
        ("captions", {"files": {"image": picture()}}, "missing required field `caption`"),
        ("captions", {"body": {"caption": "a"}, "files": {"image": b"none"}}, "readable image"),
    ],
)
def test_what_is_no_row_is_refused(ask, model, sent, words):
    answer = ask(model, **sent)
    assert answer.status_code == 400
    assert words in answer.json()["message"]


@pytest.mark.parametrize("body", [picture(), b'"' + IN_BASE64 + b'"'])
def test_images_come_decoded_and_go_as_png(ask, body):
    answer = ask("thumbnails", body)
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.content)).size == (4, 2)


def test_images_are_turned_as_the_camera_was_held(ask):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    answer = ask("thumbnails", picture(exif=exif))
    assert Image.open(io.BytesIO(answer.content)).size == (2, 4)


def test_arrays_come_from_open_inference_tensors(ask, zoo):
    ask("arrays", b"[1]")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    answer = zoo.http.post(f"{zoo.inference}/v2/models/arrays/infer", json={"inputs": [tensor]})
    (output,) = answer.json()["outputs"]
    assert (output["shape"], output["data"]) == ([1, 2], [3.0, 1.0])
    refused = zoo.http.post(f"{zoo.inference}/v2/models/arrays/infer", json={"inputs": []})
    assert refused.status_code == 400
    assert "no inputs" in refused.json()["error"]


def together(ask, *bodies):
    """Asks with four requests that make one batch."""
    ask("choosy", b"warm", config={"maxBatchDelay": 300, "batchSize": 4, "batchPolicy": "fixed"})
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda body: ask("choosy", body), bodies))


def test_bad_rows_fail_alone_within_a_batch(ask):
    # Given four requests in one batch, of which two are bad: one in decoding, one in the list
    # When
    answers = together(ask, b"good", b"\xff", b"dark", b"fine")
    # Then the others were run together
    assert [answer.status_code for answer in answers] == [200, 400, 400, 200]
    assert answers[2].json()["message"] == "too dark"
    assert [answers[0].text, answers[3].text] == ["3", "3"]


def test_exception_makes_each_row_run_alone_and_shows_the_users_frames(ask, zoo):
    # When
    answers = together(ask, b"good", b"crash", b"raise", b"fine")
    # Then
    assert [answer.status_code for answer in answers] == [200, 503, 400, 200]
    assert [answers[0].text, answers[3].text] == ["1", "1"]
    message = answers[1].json()["message"]
    assert 'File "zoo.py", line' in message
    assert message.rstrip().endswith("KeyError: 'missing'")
    assert "runner.py" not in message
    assert answers[2].json()["message"] == "raised"
    # And so does the log, without lines of the server's own
    assert "KeyError: 'missing'" in zoo.process.log()
    assert "runner.py" not in zoo.process.log()


def test_answer_may_have_type_headers_and_status_of_its_own(ask):
    answer = ask("answers", b"hi")
    assert (answer.status_code, answer.text) == (201, "<p>hi</p>")
    assert (answer.headers["content-type"], answer.headers["x-row"]) == ("text/html", "hi")


def test_predict_may_ask_what_came_with_the_rows(ask):
    headers = {"user-agent": "me", "x-request-timeout-ms": "9000"}
    answer = ask("told", b"x")
    answer = ask("told", b"x", headers=headers, params={"size": "2"})
    told = answer.json()
    assert (told["agent"], told["query"]) == ("me", {"size": "2"})
    assert told["id"] == answer.headers["x-request-id"]
    assert 0 < told["left_s"] <= 9


def test_generator_streams_a_piece_for_each_step(ask):
    answer = ask("counting", b"7")
    assert answer.text == "7!"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("name", "words"),
    [("short", "returned 0 outputs for 1 rows"), ("unfit", "object is not JSON")],
)
def test_outputs_that_are_no_answers_are_told(ask, name, words):
    answer = ask(name, b"x")
    assert answer.status_code == 503
    assert words in answer.json()["message"]


def test_measurements_are_shown_with_model_and_version(ask, zoo):
    ask("measured", b"abc")

    def shown():
        text = requests.get(f"{zoo.metrics}/metrics", timeout=10).text
        return [line for line in text.splitlines() if line.startswith(("letters", "score"))]

    lines = eventually(shown)
    labels = ('ModelVersion="1.0"', 'ModelName="measured"')
    assert all(label in line for line in lines for label in labels), lines
    assert any(line.startswith("score_bucket") for line in lines)


def test_model_with_a_life_of_its_own(ask, zoo):
    # Given a model of three rows at most, with two examples / When
    answer = ask("Lively", b"x", config={"batchSize": 3})
    # Then it was run as a whole batch and alone before it was ready
    device = "cuda:0" if list_gpus(-1) else "cpu"
    assert answer.json() == {"device": device, "sizes": [3, 1, 1]}
    (worker,) = zoo.describe("Lively")["workers"]
    # When
    zoo.manage("DELETE", "models/Lively")
    # Then
    assert worker["status"] == "READY"
    assert (zoo.folder / "unloaded").exists()


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("slow", f"{ZOO}:slow", "slow must not be async"),
        ("absent", f"{ZOO}:absent", "no function and no ferry.Model called 'absent'"),
        ("nowhere", "/nowhere.py:x", "There is no file /nowhere.py"),
    ],
)
def test_what_cannot_be_loaded_is_told(zoo, name, target, words):
    put(zoo.store, name, target)
    answer = zoo.manage("POST", "models", url=name, initial_workers=1, synchronous="true")
    assert answer.status_code == 500
    assert words in answer.json()["message"]


def test_model_explains_and_describes(ask, zoo):
    ask("shout", b"x")
    explained = requests.post(f"{zoo.inference}/explanations/shout", b"x", timeout=10)
    assert explained.status_code == 400
    described = zoo.manage("GET", "models/shout", customized="true").json()[0]
    assert described["customizedMetadata"]["summary"] == "Says it louder."
    assert described["customizedMetadata"]["input"]["kind"] == "text"
