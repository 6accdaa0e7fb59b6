"""An archive that `ferry archive` made of a Python file, in containers."""

import subprocess

import pytest

from tests.compose.stack import HTTP_S
from tests.e2e.ferry_process import FERRY

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import ferry
import helper

class Shouting(ferry.Model):
    batch_size = 8

    def predict(self, texts: list[str]) -> list[str]:
        return [helper.shout(text) for text in texts]
"""


def test_archive_of_a_file_is_served(stack, tmp_path):
    # Given
    (tmp_path / "helper.py").write_text("def shout(text):\n    return text.upper()\n")
    (tmp_path / "words.py").write_text(PROGRAM)
    words = [FERRY, "archive", "words.py", "--export-path", stack.folder / "model_store"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    (worker, *_) = stack.containers("worker")
    archive = stack.folder / "model_store" / "shouting.mar"
    stack.run(["docker", "cp", str(archive), f"{worker.name}:/model-store/shouting.mar"])
    # When
    query = {"url": "shouting.mar", "initial_workers": 1, "synchronous": "true"}
    registered = stack.http.post(f"{stack.management}/models", params=query, timeout=HTTP_S)
    # Then
    assert registered.status_code == 200, registered.text
    url = f"{stack.inference}/predictions/shouting"
    try:
        answer = stack.http.post(url, data=b"softly", timeout=HTTP_S)
        assert (answer.status_code, answer.text) == (200, "SOFTLY")
    finally:
        stack.unregister("shouting")
