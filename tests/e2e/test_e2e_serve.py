"""`ferry serve`: what it prints, what its options do, and that a save is loaded unnoticed."""

import json
import os
import subprocess

import pytest
from PIL import Image

from tests.e2e.serving import TAGGING, Load, Serving, running, save, save_and_hear, wait_for_lines
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
    (folder / "my-tag.py").write_text(TAGGING.format("first"))
    Image.new("RGB", (8, 4)).save(folder / "photo.jpg")
    (folder / "file").write_bytes(b"12345")
    with running(
        Serving(folder, folder / "models.py", folder / "my-tag.py", "--reload")
    ) as serving:
        yield serving, folder


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


def test_settings_of_the_file_and_defaults_are_announced(zoo):
    # Given / When
    serving, _ = zoo
    # Then
    assert "shouting 1.0: Says it louder.\n" in serving.output()
    assert announced(serving, "shouting")["batches"] == "up to 8, at most 3 ms, adaptive"
    assert announced(serving, "double")["batches"] == "up to 32, at most 10 ms, adaptive"
    assert announced(serving, "size")["workers"] == "2 on cpu"
    assert announced(serving, "double")["workers"] == "1 on cpu"


BROKEN = {
    "def predict(batch:\n": "my-tag.py:1: '(' was never closed",
    "import nosuchmodule\ndef predict(b): ...\n": 'File "my-tag.py", line 1, in <module>',
    "import ferry\nclass A(ferry.Model):\n    name = 'my-tag'\n    def load(self, device):\n"
    "        raise RuntimeError('no weights')\n    def predict(self, b): ...\n": (
        'File "my-tag.py", line 5, in load'
    ),
}


def test_saves_are_loaded_and_broken_ones_shown_under_load(zoo):
    # Given a model that is asked all the time
    serving, folder = zoo
    path = folder / "my-tag.py"
    with Load(serving, "my-tag").going() as load:
        for number, (text, shown) in enumerate(BROKEN.items()):
            # When a save is broken, then it is shown, and the old version serves
            save(path, text)
            wait_for_lines(serving, shown, "Still served: ")
            # When the next one is good, then it answers
            seconds = save_and_hear(load, path, str(number), by_rename=number == 1)
            assert seconds < 5
    assert load.failures == []
    # And only the last one stays
    assert eventually(lambda: len(serving.describe("my-tag")) == 1, 15)
    assert not any(line.startswith("20") for line in serving.output().splitlines())
