"""docs/first-model.md, from top to bottom: its files and commands as they stand."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.ferry_process import FERRY, FerryProcess
from tests.e2e.photos import photos
from tests.e2e.tiny_models import put_in_cache
from tests.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "first-model.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_page_runs_as_pasted(tmp_path):
    # Given the files of the page, a picture, and a tiny model in place of the large one
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    programs = [text for kind, text in blocks if kind == "python"]
    names = ("model.py", "sentiment.py", "brightness.py", "test_brightness.py")
    for name, program in zip(names, programs, strict=True):
        (tmp_path / name).write_text(program)
    (tmp_path / "photo.jpg").write_bytes(photos(1)[0])
    put_in_cache(tmp_path / "cache", "sentiment")
    environment = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    port = free_ports(3)
    # When they are served
    words = ["serve", *(str(tmp_path / name) for name in names[:3]), "--port", str(port)]
    process = FerryProcess(tmp_path, words, environment=environment)
    try:
        process.wait_for_line("Ctrl-C ends.")
        commands = [text for kind, text in blocks if kind == "sh" and "pip install" not in text]
        done = [run(command.replace("8080", str(port)), tmp_path) for command in commands]
        process.stop_cleanly()
    finally:
        process.kill()
    # Then the commands do what the page says
    numbers, [sentiment], brightness = map(json.loads, (f"{done[0]}", f"[{done[1]}]", done[2]))
    assert len(numbers) == 2
    assert sentiment["label"] in ("POSITIVE", "NEGATIVE")
    assert 0 < brightness["brightness"] < 255
    assert done[3].startswith("Wrote brightness.mar")
    # And so does its test
    assert "1 passed" in run(f"{sys.executable} -m pytest -q -p no:cacheprovider", tmp_path)


def run(command, folder):
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env={"PATH": f"{FERRY.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
