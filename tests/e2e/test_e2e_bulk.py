"""Files and batches over HTTP, through the client that people know."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import openai
import psutil
import pytest
import requests

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import MARK, FerryServer
from tests.support import eventually

pytestmark = pytest.mark.slow

# Answers with what it gets, upside down; bytes that are not UTF-8 as they are.
HANDLER = """
import json
def handle(data, context):
    bodies = [row.get("body", row.get("data")) for row in data] if data else []
    return [dict(got=one) if isinstance(one, (dict, list, str, int)) else bytes(one) for one in bodies]
"""
ENDED = {"completed", "failed", "expired", "cancelled"}


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerryServer]:
    """A server of its own, as only it has a data_dir."""
    folder = tmp_path_factory.mktemp("bulk")
    running = FerryServer(folder, "--data-dir", str(folder / "data"))
    running.wait_started()
    archive = make_archive(running.store, "echo", {"handler.py": HANDLER})
    running.register(archive, batch_size=16, max_batch_delay=5, job_queue_size=1000)
    try:
        yield running
        running.process.stop_cleanly()
    finally:
        running.process.kill()


@pytest.fixture(scope="module")
def client(bulk: FerryServer) -> Iterator[openai.OpenAI]:
    with httpx.Client(trust_env=False) as http:
        yield openai.OpenAI(
            api_key="none", base_url=f"{bulk.management}/v1", http_client=http, max_retries=0
        )


def line(custom_id: str, body: Any, **more: Any) -> dict[str, Any]:
    asked = {"custom_id": custom_id, "method": "POST", "url": "/predictions/echo", "body": body}
    return asked | more


def start(client: openai.OpenAI, lines: Sequence[Any], **more: Any) -> Any:
    """Uploads the lines, texts as they are, and creates a batch of them."""
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    asked: dict[str, Any] = {"endpoint": "/predictions", "completion_window": "24h", **more}
    return client.batches.create(input_file_id=file.id, **asked)


def ended(client: openai.OpenAI, batch: Any, timeout_s: float = 30) -> Any:
    return eventually(
        lambda: (now := client.batches.retrieve(batch.id)).status in ENDED and now, timeout_s
    )


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(one) for one in client.files.content(file_id).text.splitlines()]


def test_ten_lines_are_answered(client):
    # Given a file of ten lines
    batch = start(client, [line(f"n-{n}", {"n": n}) for n in range(10)], metadata={"of": "me"})
    assert batch.status == "validating"
    assert batch.metadata == {"of": "me"}

    # When the batch has ended
    batch = ended(client, batch)

    # Then each line has its answer, under its own id
    assert batch.status == "completed"
    assert batch.request_counts.to_dict() == {"total": 10, "completed": 10, "failed": 0}
    assert batch.error_file_id is None
    answers = {one["custom_id"]: one["response"] for one in lines_of(client, batch.output_file_id)}
    assert {name: one["body"] for name, one in answers.items()} == {
        f"n-{n}": {"got": {"n": n}} for n in range(10)
    }
    assert {one["status_code"] for one in answers.values()} == {200}
