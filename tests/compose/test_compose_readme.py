"""The blocks of README.md and docs/container.md on containers, run on ports of their own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.compose.stack import compose_command
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FERRY
from tests.e2e.test_readme import blocks

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = "docs/container.md"
MODEL = "resnet-152-batch_v2"
HANDLER = "def handle(data, context):\n    return [len(row['body']) for row in data or []]\n"
NUMBERS = "def predict(batch):\n    return [row[:2] for row in batch]\n"
HOST_PORTS = ("INFERENCE_HOST", "INFERENCE_PORT", "MANAGEMENT_PORT", "METRICS_PORT")


class Reader:
    """Somebody who follows the README in a checkout."""

    def __init__(self, stack):
        self.stack = stack
        self.dotenv = stack.folder / ".env"

    def run(self, text):
        for offset in range(3):
            text = text.replace(
                f"localhost:{8080 + offset}", f"127.0.0.1:{self.stack.port + offset}"
            )
        text = text.replace("docker compose", " ".join(compose_command()))
        environment = {
            "PATH": f"{Path(FERRY).parent}:{os.environ['PATH']}",
            "FERRY_MANAGEMENT_URL": self.stack.management,
        }
        words = ["bash", "-euo", "pipefail", "-c", self.without_own_ports(text)]
        printed = self.stack.run(words, env=environment)
        # curl calls any answer a success.
        assert '"code":' not in printed, printed
        return printed

    def without_own_ports(self, text):
        """What the environment says goes before `.env`, so it may say nothing of its variables."""
        if self.dotenv.exists() or " .env\n" in text:
            return f"unset {' '.join(HOST_PORTS)}\n{text}"
        return text


@pytest.fixture
def reader(stack):
    yield Reader(stack)
    (stack.folder / ".env").unlink(missing_ok=True)
    stack.restore()


def test_readme_block_on_containers_works_as_pasted(reader, tmp_path):
    # Given an archive of its model's name that needs no torch
    (tmp_path / "model.py").write_text(NUMBERS)
    store = reader.stack.folder / "model_store"
    words = [FERRY, "archive", "model.py", "--export-path", store, "--force"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    [block] = (block for block in blocks() if "compose" in block.kinds)
    # When
    printed = reader.run(block.text)
    # Then
    assert json.loads(printed.splitlines()[-1]) == [1, 2]
    reader.stack.unregister("model")


def test_section_on_compose_works_as_pasted(reader):
    # Given the archive that it names, with a model that needs no torch
    stack = reader.stack
    (stack.folder / "model_store").mkdir(exist_ok=True)
    archive = make_archive(stack.folder / "model_store", MODEL, {"handler.py": HANDLER})
    (stack.folder / "model_store" / archive).rename(stack.folder / "model_store" / f"{MODEL}.mar")
    photo_bytes = (stack.folder / "examples" / "kitten.jpg").stat().st_size
    # When
    printed = [reader.run(block.text) for block in blocks(PAGE) if "compose" in block.kinds]
    # Then
    first, scaled, balanced, _ = printed
    assert f'Model \\"{MODEL}\\" Version: 1.0 registered with 1 initial workers' in first
    assert first.endswith(str(photo_bytes))
    assert scaled.count('"status": "READY"') == 3
    assert balanced.endswith(str(photo_bytes))
    stack.wait_healthy()
    services = [container.service for container in stack.containers()]
    assert sorted(services) == sorted(
        ["redis", "worker", "worker", "ingress", "ingress", "balancer", "prometheus", "grafana"]
    )
