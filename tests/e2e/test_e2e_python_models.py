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


def npy(values):
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("body", "options", "expected"),
    [
        (b"[1, 2]", {}, "list"),
        (b'{"a": "1+1&b=%41"}', {"headers": {"content-type": "text/plain"}}, "dict"),
        (b"[1, 2]", {"headers": FORM}, "list"),
        (b"7", {}, "int"),
        (picture(), {"headers": {"content-type": "image/jpeg"}}, "Image"),
        (picture(), {}, "bytes"),
        (b"hello", {}, "bytes"),
        (None, {"files": {"a": b"1", "b": b"x"}}, "dict"),
    ],
)
def test_row_without_annotation_is_what_it_looks_like(ask, body, options, expected):
    answer = ask("untyped", body, **options)
    assert (answer.status_code, answer.text) == (200, expected)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    "options",
    [
        {"body": b"abc"},
        {"body": b"abc", "headers": JSON},
        {"files": {"data": b"abc"}},
        {"files": {"any": b"abc"}},
    ],
)
def test_bytes_come_as_they_are(ask, options):
    answer = ask("raw", options.pop("body", None), **options)
    assert answer.content == b"cba"
    assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ("grüße & co=1".encode(), FORM, "GRÜSSE & CO=1"),
        (b"hello", {}, "HELLO"),
        (b'"hello"', JSON, "HELLO"),
        (b"data=hi+there", FORM, "HI THERE"),
    ],
)
def test_text_comes_as_text(ask, body, headers, expected):
    assert ask("shout", body, headers=headers).content.decode() == expected


def test_json_of_any_type(ask):
    assert ask("keys", b'{"b": 1, "a": 2}').json() == ["a", "b"]
    assert "Expected `object`, got `array`" in ask("keys", b"[1]").json()["message"]
    assert ask("values", b'[1, {"a": null}]').json() == [1, {"a": None}]
    assert ask("values", b"[1,").status_code == 400


def test_typed_json_is_checked(ask):
    assert ask("points", b'{"x": 1, "y": 2}').json() == {"x": 2, "y": 1}
    refused = ask("points", b'{"x": "one"}')
    assert refused.status_code == 400
    assert "Expected `int`, got `str` - at `$.x`" in refused.json()["message"]
    assert "missing required field `x`" in ask("points", b"{}").json()["message"]
    assert ask("points", {"x": "3"}).json() == {"x": 0, "y": 3}  # a form's numbers are text
    assert ask("names", b'{"name": "Ann"}').text == "Ann"
    assert "name" in ask("names", b'{"nam": "Ann"}').json()["message"]


def test_pydantic_models_are_checked(ask):
    assert ask("people", b'{"age": 1}').json() == {"age": 2}
    refused = ask("people", b'{"age": "old"}')
    assert refused.status_code == 400
    assert "at `$.age`" in refused.json()["message"]


@pytest.mark.parametrize("body", [picture(), base64.b64encode(picture()).join([b'"', b'"'])])
def test_images_come_decoded_and_go_as_png(ask, body):
    answer = ask("thumbnails", body)
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.content)).size == (4, 2)


def test_images_are_turned_as_the_camera_was_held(ask):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    answer = ask("thumbnails", picture(exif=exif))
    assert Image.open(io.BytesIO(answer.content)).size == (2, 4)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[[1, 2], [3, 4]]", [10, 2]),
        (npy([[1.5, 2.5]]), [4.0, 2]),
        (npy(np.asfortranarray(np.ones((2, 3)))), [6.0, 2]),
    ],
)
def test_arrays_come_from_json_and_npy(ask, body, expected):
    answer = ask("arrays", body)
    assert answer.json() == expected
    assert answer.headers["content-type"] == "application/json"


def test_arrays_come_from_open_inference_tensors(ask, zoo):
    ask("arrays", b"[1]")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    answer = zoo.http.post(f"{zoo.inference}/v2/models/arrays/infer", json={"inputs": [tensor]})
    (output,) = answer.json()["outputs"]
    assert (output["shape"], output["data"]) == ([1, 2], [3.0, 1.0])
    refused = zoo.http.post(f"{zoo.inference}/v2/models/arrays/infer", json={"inputs": []})
    assert refused.status_code == 400
    assert "no inputs" in refused.json()["error"]


ANY = {"content-type": "application/octet-stream"}


@pytest.mark.parametrize(
    ("name", "body", "headers", "words"),
    [
        ("untyped", b"[1, 2", FORM, "The body is not the JSON that is wanted"),
        ("shout", b"\xff\xfe", ANY, "JSON string"),
        ("shout", b"[1]", JSON, "JSON string"),
        ("shout", b'"open', JSON, "JSON string"),
        ("thumbnails", b"no image", ANY, "Input is not a readable image"),
        ("thumbnails", picture()[:100], ANY, "Input is not a readable image"),
        ("thumbnails", picture(8200, 8200, "PNG"), ANY, "Input is not a readable image"),
        ("arrays", b"[[1, 2], [3]]", ANY, ""),
        ("arrays", b'["a"]', ANY, ""),
        ("arrays", npy([1, 2])[:-1], ANY, ""),
        ("arrays", b"\x93NUMPY", ANY, ""),
    ],
)
def test_what_is_no_row_of_its_kind_is_refused(ask, name, body, headers, words):
    answer = ask(name, body, headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["message"]


def test_npy_file_runs_nothing_and_claims_no_memory(ask):
    # Given a pickle within a .npy, and a head that says a terabyte
    harmful = io.BytesIO()
    np.save(harmful, np.array([{}], object), allow_pickle=True)
    huge = npy(np.zeros(2)).replace(b"(2,), }" + 12 * b" ", b"(999999999999,), }" + b" ")
    assert len(huge) == len(npy(np.zeros(2)))
    for body in (harmful.getvalue(), huge):
        # When / Then
        assert ask("arrays", body).status_code == 400


def test_several_inputs_come_in_a_form_or_in_json(ask):
    form = ask("captions", {"caption": "ab", "times": "2"}, files={"image": picture()})
    assert form.json() == {"text": "abab", "width": 8}
    image = base64.b64encode(picture()).decode()
    assert (
        ask("captions", json.dumps({"image": image, "caption": "c"}).encode()).json()["text"] == "c"
    )
    refused = ask("captions", None, files={"image": picture()})
    assert "missing required field `caption`" in refused.json()["message"]
    refused = ask("captions", {"caption": "a"}, files={"image": b"none"})
    assert "not a readable image" in refused.json()["message"]


def test_bad_rows_fail_alone_within_a_batch(ask):
    # Given four requests in one batch, of which two are bad: one in decoding, one in the list
    ask("choosy", b"warm", config={"maxBatchDelay": 300, "batchSize": 4, "batchPolicy": "fixed"})
    bodies = [b"good", b"\xff", b"dark", b"fine"]
    # When
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: ask("choosy", body), bodies))
    # Then the others were run together
    assert [answer.status_code for answer in answers] == [200, 400, 400, 200]
    assert answers[2].json()["message"] == "too dark"
    assert [answers[0].text, answers[3].text] == ["3", "3"]


def test_exception_makes_each_row_run_alone_and_shows_the_users_frames(ask, zoo):
    # Given
    ask("choosy", b"warm", config={"maxBatchDelay": 300, "batchSize": 4, "batchPolicy": "fixed"})
    bodies = [b"good", b"crash", b"raise", b"fine"]
    # When
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: ask("choosy", body), bodies))
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
        ("Broken", f"{ZOO}:Broken", "RuntimeError: no weights here"),
        ("slow", f"{ZOO}:slow", "slow must not be async"),
        ("absent", f"{ZOO}:absent", "no function and no ferry.Model called 'absent'"),
        ("two", f"{ZOO}:two", "predict takes one batch"),
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
