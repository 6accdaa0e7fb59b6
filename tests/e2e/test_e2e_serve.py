"""`ferry serve`: what it prints, what its options do, and that a save is loaded unnoticed."""

import contextlib
import json
import os
import signal
import subprocess

import pytest
from PIL import Image

from tests.e2e.ferry_process import FERRY, running
from tests.e2e.serving import TAGGING, Serving, save
from tests.ports import free_ports
from tests.support import eventually

pytestmark = pytest.mark.slow

MODELS = '''
import dataclasses

import ferry
import helper
from PIL.Image import Image


@dataclasses.dataclass
class Point:
    x: int
    label: str
    y: float = 0.5


class Shouting(ferry.Model):
    """Says it louder."""

    batch_size = 8
    max_batch_delay = 3
    warm_up = ["it's quiet"]

    def predict(self, texts: list[str]) -> list[str]:
        return [helper.shout(text) for text in texts]


@ferry.model(name="size", min_worker=2)
def measure(images: list[Image]) -> list[dict]:
    return [{"width": image.width} for image in images]


@ferry.model
def swap(points: list[Point]) -> list[Point]:
    return [Point(int(point.y), point.label, point.x) for point in points]


@ferry.model
def count(files: list[bytes]) -> list[int]:
    return [len(file) for file in files]


@ferry.model
def double(batch):
    return [[2 * number for number in row] for row in batch]
'''
HELPER = "def shout(text):\n    return text.upper()\n"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "models.py").write_text(MODELS)
    (folder / "helper.py").write_text(HELPER)
    Image.new("RGB", (8, 4)).save(folder / "photo.jpg")
    (folder / "file").write_bytes(b"12345")
    with running(Serving(folder, folder / "models.py")) as serving:
        yield serving, folder


@pytest.fixture
def serve(tmp_path):
    """Starts `ferry serve`; whatever happens, all end."""
    with contextlib.ExitStack() as cleanup:

        def start(*arguments, **options):
            serving = Serving(tmp_path, *arguments, **options)
            cleanup.callback(serving.process.kill)
            return serving

        yield start


def announced(serving, model):
    """Returns what is said of a model: its facts by name."""
    _, _, text = serving.output().partition(f"{model} 1.0")
    lines = [line for line in text.splitlines()[1:6] if line.startswith("  ")]
    return {line[2:11].strip(): line[11:] for line in lines}


@pytest.mark.parametrize(
    ("model", "takes", "answer"),
    [
        ("shouting", "text (str)", "IT'S QUIET"),
        ("size", "image (Image)", {"width": 8}),
        ("swap", "json (Point)", {"x": 0, "label": "some text", "y": 1.0}),
        ("count", "bytes", 5),
        ("double", "JSON, an image, or bytes", [2.0, 4.0, 6.0, 8.0]),
    ],
)
def test_curl_line_works_as_pasted(zoo, model, takes, answer):
    # Given
    serving, folder = zoo
    facts = announced(serving, model)
    # When
    done = subprocess.run(
        ["sh", "-c", f"{facts['try']} --silent --fail"],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    # Then
    assert done.returncode == 0, done
    assert (done.stdout if isinstance(answer, str) else json.loads(done.stdout)) == answer
    assert facts["takes"] == takes
    assert facts["page"] == f"{serving.url}/"


def test_options_choose_workers_device_and_model(tmp_path, serve):
    # Given two targets, of one of which a name is picked
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "tag.py").write_text(TAGGING.format("plain"))
    # When
    targets = (tmp_path / "models.py:double", tmp_path / "tag.py")
    opened = tmp_path / "opened"
    options = ("--workers", "2", "--device", "cpu", "--no-reload", "--open")
    serving = serve(*targets, *options, BROWSER=f"sh -c 'echo %s > {opened}'")
    serving.wait_started()
    # Then
    assert announced(serving, "double")["workers"] == "2 on cpu"
    assert announced(serving, "tag")["workers"] == "2 on cpu"
    assert "shouting" not in serving.output()
    assert serving.predict("tag", b"1").text == "plain"
    assert eventually(opened.exists, 10)
    assert eventually(lambda: opened.read_text() == f"{serving.url}\n", 10)
    # When a second one is to have the same port, then it says so in one sentence
    second = serve(tmp_path / "tag.py", port=serving.port)
    assert eventually(second.process.has_ended, 20)
    assert second.process.exit_code() == 1
    assert second.output().count("\n") == 1
    assert f"http://127.0.0.1:{serving.port} is in use" in second.output()


def test_terminal_has_reload_and_a_broken_start_waits_for_the_next_save(tmp_path):
    # Given a model that does not load, and a terminal
    path = tmp_path / "tag.py"
    path.write_text("import helper\n")
    path.write_text("import helper\ndef predict(b): ...\n")
    ours, theirs = os.openpty()
    port = free_ports(3)
    words = [FERRY, "serve", path, "--port", str(port)]
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    lines = os.fdopen(ours, "rb")
    try:
        assert read_until(lines, b"Waiting for the next save.")
        # When the missing module is made
        (tmp_path / "helper.py").write_text("")
        save(path, TAGGING.format("well"))
        # Then it serves
        assert read_until(lines, b"curl http")
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0
        lines.close()


def read_until(lines, text):
    """Returns whether a line with this text comes."""
    while line := lines.readline():
        if text in line:
            return True
    return False


def test_archive_answers_on_another_server_as_the_file_does(tmp_path, serve, server):
    # Given a file with a module beside it, which is served
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "models.py").write_text(MODELS)
    target = f"{tmp_path / 'models.py'}:Shouting"
    serving = serve(target, "--no-reload")
    serving.wait_started()
    # When it is packed, and registered elsewhere
    words = [FERRY, "archive", target, "--export-path", server.store]
    subprocess.run(words, check=True, capture_output=True)
    with server.model("shouting.mar", "shouting"):
        # Then
        described = server.describe("shouting")
        ask = {"headers": {"content-type": "text/plain"}}
        answers = [one.predict("shouting", b"softly", **ask) for one in (serving, server)]
    assert [answer.text for answer in answers] == ["SOFTLY", "SOFTLY"]
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"]
    assert (described["batchSize"], described["maxBatchDelay"]) == (8, 3)
    # And the archive itself is a target, too
    packed = serve(server.store / "shouting.mar")
    packed.wait_started()
    assert packed.predict("shouting", b"softly", **ask).text == "SOFTLY"
