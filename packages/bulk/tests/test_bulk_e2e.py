"""Files and batches beside a real server, through the client that people know."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest

from packages.bulk.tests.bulk_process import BulkProcess, line
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer
from tests.e2e.page_blocks import only_block
from tests.support import eventually

pytestmark = pytest.mark.slow

# Answers with what it gets.
HANDLER = """
def handle(data, context):
    bodies = [row.get("body", row.get("data")) for row in data] if data else []
    return [bytes(one) if isinstance(one, (bytes, bytearray)) else dict(got=one) for one in bodies]
"""
MOST_BYTES = 50_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerryServer]:
    running = FerryServer(tmp_path_factory.mktemp("server"))
    try:
        running.wait_started()
        archive = make_archive(running.store, "echo", {"handler.py": HANDLER})
        running.register(archive, batch_size=64, max_batch_delay=5)
        yield running
        running.process.stop_cleanly()
    finally:
        running.process.kill()


@pytest.fixture(scope="module")
def bulk(server: FerryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BulkProcess]:
    folder = tmp_path_factory.mktemp("bulk")
    running = BulkProcess(folder, server.inference, "--max-file-size", str(MOST_BYTES))
    try:
        yield running
        running.stop()
    finally:
        running.process.kill()


def test_openai_runs_many_lines_each_answered_under_its_own_id(bulk):
    # Given lines, three of them bad
    lines: list[Any] = [line(f"n-{n}", {"n": n}) for n in range(1000)]
    lines[7], lines[500], lines[999] = "no JSON", line("x", 1, method="PUT"), "{}"
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    with httpx.Client(trust_env=False) as http:
        client = openai.OpenAI(
            api_key="none", base_url=f"{bulk.url}/v1", http_client=http, max_retries=0
        )
        # When
        file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/predictions", completion_window="24h"
        )
        bulk.ended(batch.id, 55)
        batch = client.batches.retrieve(batch.id)
        # Then
        assert batch.status == "completed"
        assert batch.request_counts.to_dict() == {"total": 1000, "completed": 997, "failed": 3}
        answers = [
            json.loads(one) for one in client.files.content(batch.output_file_id).text.splitlines()
        ]
        assert sorted(one["response"]["body"]["got"]["n"] for one in answers) == [
            n for n in range(1000) if n not in {7, 500, 999}
        ]
        assert all(
            one["custom_id"] == f"n-{one['response']['body']['got']['n']}" for one in answers
        )
        assert len(client.files.content(batch.error_file_id).text.splitlines()) == 3
        # And the rest of the client works as well
        assert batch.id in [one.id for one in client.batches.list(limit=5)]
        assert client.files.list(limit=1).data[0].purpose == "batch_output"
        assert client.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)
        with pytest.raises(openai.BadRequestError):
            client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")


def test_example_of_the_page_runs(bulk, server, tmp_path):
    # Given the page's program, and its line
    program = only_block("bulk.md", "python").replace("http://localhost:8083", bulk.url)
    (tmp_path / "in.jsonl").write_text(only_block("bulk.md", "json", "A line in"))
    # When
    with server.model("echo-1.0.mar", "digits"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    # Then it prints a line like the page's
    assert done.returncode == 0, done.stderr
    printed, of_page = (
        json.loads(one) for one in (done.stdout, only_block("bulk.md", "json", "A line out"))
    )
    assert printed["response"]["body"] == {"got": {"pixels": [0, 1]}}
    assert (printed["custom_id"], printed["error"]) == ("a", None)
    assert [*printed, *printed["response"]] == [*of_page, *of_page["response"]]


def test_lines_of_bytes_and_of_json_are_answered_in_kind(bulk):
    # Given
    bytes_line = line("bytes", None, body_b64="/wA=", content_type="application/x-any")
    # When
    batch = bulk.ended(bulk.create_batch([line("good", 7), bytes_line])["id"])
    # Then
    assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    answers = {one["custom_id"]: one["response"] for one in bulk.lines(batch["output_file_id"])}
    assert answers["good"]["body"] == {"got": 7}
    assert answers["bytes"]["body_b64"] == "/wA="


def test_cancelled_batch_ends_and_leaves_nothing_in_the_queue(bulk, server):
    def waiting() -> float:
        text = server.http.get(f"{server.metrics}/metrics", timeout=10).text
        found = re.search(r'ferry_jobs_waiting\{[^}]*"idle"[^}]*\} (\S+)', text)
        return float(found[1]) if found else -1

    # Given a model without a worker
    with server.model("echo-1.0.mar", "idle", initial_workers=0):
        lines = [line(f"n{n}", n, "idle") for n in range(30)]
        batch = bulk.create_batch([*lines, "no JSON"])
        eventually(lambda: waiting() == 30, 20)
        # When
        answer = bulk.http.post(f"/batches/{batch['id']}/cancel")
        assert answer.json()["status"] == "cancelling"
        # Then
        batch = bulk.ended(batch["id"])
        assert batch["status"] == "cancelled"
        assert batch["request_counts"] == {"total": 31, "completed": 0, "failed": 1}
        eventually(lambda: waiting() == 0, 20)


def test_tokens_are_passed_on_and_asked_for(tmp_path):
    # Given a server with tokens, and a file that has another one
    keys, token = tmp_path / "keys.json", tmp_path / "token"
    token.write_text("wrong")
    server = FerryServer(tmp_path, "--token-auth", "--key-file", str(keys))
    bulk = BulkProcess(
        tmp_path, server.inference, "--token-file", str(token), FERRY_BULK_TOKEN="own"
    )
    try:
        server.wait_started()
        known = json.loads(keys.read_text())
        management = {"Authorization": f"Bearer {known['management']['key']}"}
        archive = make_archive(server.store, "echo", {"handler.py": HANDLER})
        server.http.headers.update(management)
        server.register(archive)
        assert bulk.http.get("/batches").status_code == 401
        bulk.http.headers["Authorization"] = "Bearer own"
        batch = bulk.create_batch([line("a", 1)])
        bulk.process.wait_for_line("lines wait: ")
        assert bulk.batch(batch["id"])["status"] == "in_progress"
        # When the right one is there
        token.write_text(known["inference"]["key"] + "\n")
        # Then
        assert bulk.ended(batch["id"])["request_counts"]["completed"] == 1
        bulk.stop()
    finally:
        bulk.process.kill()
        server.process.kill()


def upload(url: str, size_bytes: int, *, is_chunked: bool) -> httpx.Response:
    """Uploads a file of so many bytes, which no process has in its memory as a whole."""
    head = (
        b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    )
    tail, piece = b"\r\n--x--\r\n", b"x" * 1_000_000

    def pieces() -> Iterator[bytes]:
        yield head
        for _ in range(size_bytes // len(piece)):
            yield piece
        yield tail

    headers = {"content-type": "multipart/form-data; boundary=x"}
    if not is_chunked:
        headers["content-length"] = str(len(head) + size_bytes + len(tail))
    with httpx.Client(trust_env=False, timeout=60) as http:
        return http.post(f"{url}/v1/files", content=pieces(), headers=headers)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_large_file_passes_and_the_process_does_not_grow(bulk, is_chunked):
    # When it is sent, and read
    process = psutil.Process(bulk.process.pid)
    before = process.memory_info().rss
    answer = upload(bulk.url, MOST_BYTES, is_chunked=is_chunked)
    assert answer.status_code == 200, answer.text
    uploaded, size_bytes = process.memory_info().rss, 0
    with bulk.http.stream("GET", f"/files/{answer.json()['id']}/content") as content:
        for piece in content.iter_bytes():
            size_bytes += len(piece)
    # Then
    assert size_bytes == answer.json()["bytes"] == MOST_BYTES
    assert max(uploaded, process.memory_info().rss) - before < 30_000_000
    # And one that is too large is refused, and not kept
    before_files = set(bulk.folder.rglob("*"))
    answer = upload(bulk.url, MOST_BYTES + 1_000_000, is_chunked=is_chunked)
    assert (answer.status_code, "max-file-size" in answer.text) == (413, True)
    assert set(bulk.folder.rglob("*")) == before_files


def test_uploads_that_take_long_hold_up_nothing_else(bulk):
    # Given more uploads than there are threads, of which only the beginning has come
    head = (
        b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n"
        b"content-type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        b'content-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    )
    with contextlib.ExitStack() as uploads:
        for _ in range(40):
            address = ("127.0.0.1", bulk.port)
            uploads.enter_context(socket.create_connection(address)).sendall(head + b"x" * 100_000)
        # When / Then
        assert bulk.http.get("/files", timeout=5).status_code == 200
