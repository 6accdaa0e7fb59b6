import http.server
import importlib
import io
import json
import os
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from examples.digits import build, demo, train
from examples.digits.data import held_out, split_indexes, training_set
from tests.http_server import serving
from tests.ports import free_ports

PNG_LABELS = dict(held_out())


class RowRecorder:
    """What the handler tells a server about its rows, kept."""

    def __init__(self, model_dir):
        self.system_properties = {"model_dir": str(model_dir), "gpu_id": None}
        self.manifest = json.loads((model_dir / "MAR-INF" / "MANIFEST.json").read_text())
        self.headers = {}
        self.statuses = {}

    def set_response_header(self, idx, key, value):
        self.headers[idx, key] = value

    def set_response_content_type(self, idx, value):
        self.headers[idx, "content-type"] = value

    def set_response_status(self, code=200, phrase="", idx=0):
        self.statuses[idx] = (code, phrase)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return build.build(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def model_dir(archive, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(archive) as source:
        source.extractall(folder)
    return folder


@pytest.fixture
def context(model_dir):
    return RowRecorder(model_dir)


@pytest.fixture
def handler(model_dir, context, monkeypatch):
    """The handler out of the archive, with nothing of this repository beside it."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(model_dir))
    for name in ("handler", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("handler")
    instance = module.DigitsHandler()
    instance.initialize(context)
    yield instance
    torch.set_num_threads(threads)
    for name in ("handler", "model"):
        del sys.modules[name]


@pytest.fixture
def stub_address():
    """A server whose answers are right, except to images that `wrong` names."""

    class Stub(http.server.BaseHTTPRequestHandler):
        wrong = frozenset()

        def do_POST(self):
            png = self.rfile.read(int(self.headers["content-length"]))
            label = PNG_LABELS[png]
            digit = (label + 1) % 10 if png in self.wrong else label
            body = json.dumps({"digit": digit, "probability": 0.9}).encode()
            self.send_response(200)
            self.send_header("x-batch-size", "4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 64  # the default of 5 resets some of 16 clients' connections

    server = Server(("127.0.0.1", 0), Stub)
    server.stub = Stub
    with serving(server) as address:
        yield server, address


def test_split_is_disjoint_and_whole():
    # When
    training, held = split_indexes()

    # Then
    assert set(training).isdisjoint(held)
    assert sorted([*training, *held]) == list(range(1797))
    assert (len(training), len(held)) == (1437, 360)


def test_split_shares_no_image():
    # Given
    images, _ = training_set()
    trained = {np.rint(image * 255).astype(np.uint8).tobytes() for image in images}

    # When
    held = {np.asarray(Image.open(io.BytesIO(png))).tobytes() for png, _ in held_out()}

    # Then
    assert trained.isdisjoint(held)


def test_held_out_is_reproducible():
    # When
    first, second = held_out(), held_out()

    # Then
    assert first == second
    assert {label for _, label in first} == set(range(10))
    # What was held out when the example was written; another split would make every published
    # accuracy mean something else.
    assert [label for _, label in first[:12]] == [0, 5, 0, 5, 0, 5, 0, 5, 8, 3, 2, 0]


def test_training_is_reproducible(monkeypatch):
    # Given
    monkeypatch.setattr(train, "EPOCHS", 1)

    # When
    first, second = train.train().state_dict(), train.train().state_dict()

    # Then
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_model_reads_95_percent_of_held_out_digits(handler):
    # Given
    network = handler._network
    pictures = [np.asarray(Image.open(io.BytesIO(png))) for png, _ in held_out()]
    batch = torch.from_numpy(np.stack(pictures)).unsqueeze(1).float() / 255
    labels = torch.tensor([label for _, label in held_out()])

    # When
    with torch.inference_mode():
        digits = network(batch).argmax(dim=1)

    # Then
    assert (digits == labels).float().mean() >= 0.95


@pytest.mark.slow
def test_handler_answers_each_row_when_batched(handler, context):
    # Given
    pictures = held_out()[:32]
    rows = [{"body": bytearray(png)} for png, _ in pictures[:16]]
    rows += [{"data": bytearray(png)} for png, _ in pictures[16:]]

    # When
    answers = handler.handle(rows, context)

    # Then
    right = sum(
        answer["digit"] == label for answer, (_, label) in zip(answers, pictures, strict=True)
    )
    assert right >= 30
    assert all(0.1 <= answer["probability"] <= 1 for answer in answers)
    assert {context.headers[index, "x-batch-size"] for index in range(32)} == {"32"}
    assert context.statuses == {}


def huge_png():
    """An empty picture of 144 megapixels, of which Pillow by itself only warns."""
    stream = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [b"", b"not an image", held_out()[0][0][:40], huge_png(), "text", {"json": 1}, None],
    ids=["empty", "garbage", "cut", "huge", "text", "json", "missing"],
)
def test_handler_refuses_one_row_when_unreadable(handler, context, body):
    # Given
    (first, first_label), (last, last_label) = held_out()[2], held_out()[3]

    # When
    answers = handler.handle([{"body": first}, {"body": body}, {"body": last}], context)

    # Then
    assert (answers[0]["digit"], answers[2]["digit"]) == (first_label, last_label)
    assert "PNG" in answers[1]["error"]
    assert context.statuses == {1: (400, "Bad Request")}


@pytest.mark.slow
def test_handler_refuses_huge_image_when_file_is_small(handler, context):
    # Given
    stream = io.BytesIO()
    Image.new("L", (2000, 20)).save(stream, format="PNG")

    # When
    answers = handler.handle([{"body": stream.getvalue()}], context)

    # Then
    assert "larger than 1024" in answers[0]["error"]
    assert context.statuses[0][0] == 400


@pytest.mark.slow
def test_handler_shrinks_larger_picture(handler, context):
    # Given
    png, label = held_out()[2]
    stream = io.BytesIO()
    Image.open(io.BytesIO(png)).resize((64, 64), Image.Resampling.NEAREST).save(stream, "PNG")

    # When
    answers = handler.handle([{"body": stream.getvalue()}], context)

    # Then
    assert answers[0]["digit"] == label


@pytest.mark.slow
def test_build_keeps_archive_when_newer_than_sources(archive):
    # Given
    before = archive.stat().st_mtime_ns

    # When
    again = build.build(archive.parent)

    # Then
    assert again == archive
    assert archive.stat().st_mtime_ns == before


@pytest.mark.slow
def test_build_is_due_when_archive_is_older_than_sources(archive, tmp_path):
    # Given
    copy = tmp_path / archive.name
    copy.write_bytes(archive.read_bytes())
    assert build.is_current(copy)

    # When
    os.utime(copy, (0, 0))

    # Then
    assert not build.is_current(copy)


def test_demo_shows_accuracy_and_batches_when_answers_are_right(stub_address, capsys):
    # Given
    _, address = stub_address

    # When
    code = demo.main(["--address", address])

    # Then
    output = capsys.readouterr().out
    assert code == 0, output
    assert "64 of 64 right (100.0%)" in output
    assert "(90.0%)" in output
    assert any(line.split()[:3] == ["4", "64", "16"] for line in output.splitlines())


def test_demo_draws_mistakes_first_and_fails_when_answers_are_wrong(stub_address):
    # Given
    server, address = stub_address
    pictures = held_out()[:8]
    server.stub.wrong = frozenset({pictures[5][0]})

    # When
    answers = demo.ask_all(f"{address}/predictions/digits", pictures, clients=4)

    # Then
    assert [answer.is_right for answer in answers] == [index != 5 for index in range(8)]
    assert demo.to_draw(answers)[0] == answers[5]
    console = Console(record=True, width=100, file=io.StringIO())
    demo.show(console, answers)
    assert "7 of 8 right (87.5%)" in console.export_text()


def test_demo_says_so_when_nobody_listens(capsys):
    # When
    code = demo.main(["--address", f"http://127.0.0.1:{free_ports(1)}"])

    # Then
    assert code == 2
    assert "no answer from" in capsys.readouterr().out
