"""The examples of docs/client.md run as they stand, with a model that echoes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.ferry_process import FERRY, FerryServer

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
BLOCK = re.compile(r"^```(?P<kind>python|sh)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def test_examples_run(server: FerryServer, scripted: str, tmp_path: Path) -> None:
    # Given
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "kitten.jpg").write_text('{"tabby": 0.9}')
    environment = {
        "PATH": f"{FERRY.parent}:{os.environ['PATH']}",
        "FERRY_INFERENCE_URL": server.inference,
        "FERRY_MANAGEMENT_URL": server.management,
    }
    program = "\n".join(text for kind, text in blocks if kind == "python")
    commands = "\n".join(text for kind, text in blocks if kind == "sh")
    program = program.replace("http://localhost:8080", server.inference)
    for words in ([sys.executable, "-c", program], ["bash", "-euc", commands]):
        with server.model(scripted, "resnet-152", batch_size=8):
            # When
            done = subprocess.run(
                words,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=50,
                check=False,
            )
        # Then
        assert done.returncode == 0, done.stdout + done.stderr
        assert "tabby" in done.stdout
    assert (tmp_path / "results" / "kitten.jpg.out").read_text() == '{"tabby": 0.9}'
