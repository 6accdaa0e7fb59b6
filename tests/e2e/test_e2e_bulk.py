"""Files and batches over HTTP, through the client that people know."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import openai
import psutil
import pytest

from ingress.rest.wsgi_bridge import FILES_AT_ONCE
from tests.described import Described
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer
from tests.e2e.page_blocks import only_block
from tests.support import eventually

pytestmark = pytest.mark.slow

# Answers with what it gets.
HANDLER = """
import json
def handle(data, context):
    bodies = [row.get("body", row.get("data")) for row in data] if data else []
    return [bytes(one) if isinstance(one, (bytes, bytearray)) else dict(got=one) for one in bodies]
"""
MOST_BYTES = 100_000_000
ENDED = {"completed", "failed", "expired", "cancelled"}


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerryServer]:
    """A server of its own, as only it has a data_dir."""
    folder = tmp_path_factory.mktemp("bulk")
    running = FerryServer(
        folder, "--data-dir", str(folder / "data"), "--bulk-max-file-size-bytes", str(MOST_BYTES)
    )
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


def test_example_of_the_page_runs(bulk, tmp_path):
    # Given the page's program, and its line
    program = only_block("bulk.md", "python").replace("http://localhost:8081", bulk.management)
    (tmp_path / "in.jsonl").write_text(only_block("bulk.md", "json", "A line in"))
    # When
    with bulk.model("echo-1.0.mar", "digits"):
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


def test_bad_lines_are_in_the_error_file_and_the_others_run(client):
    # Given
    bad = ["no JSON", line("", 1), line("get", 1, method="GET"), line("url", 1, url="/models/echo")]
    strange = line("no such model", 1, url="/predictions/unknown")
    bytes_line = line("bytes", None, body_b64="/wA=", content_type="application/x-any")
    batch = start(client, [*bad, line("good", 7), bytes_line, strange])

    # When
    batch = ended(client, batch)

    # Then
    assert batch.status == "completed"
    assert batch.request_counts.to_dict() == {"total": 7, "completed": 2, "failed": 5}
    answers = {one["custom_id"]: one for one in lines_of(client, batch.output_file_id)}
    assert answers["good"]["response"]["body"] == {"got": 7}
    assert answers["bytes"]["response"]["body_b64"] == "/wA="
    errors = lines_of(client, batch.error_file_id)
    assert [one["error"]["code"] for one in errors] == [
        "invalid_json_line",
        "missing_custom_id",
        "invalid_method",
        "invalid_url",
        "model_not_found",
    ]
    assert [one["custom_id"] for one in errors] == [None, "", "get", "url", "no such model"]


def test_batch_without_lines_fails(client):
    batch = ended(client, start(client, ["", " "]))
    assert batch.status == "failed"
    assert batch.errors.data[0].message == "The input file has no lines."


def test_files_and_batches_are_listed_and_deleted(client):
    file = client.files.create(
        file=("a.jsonl", b"{}"),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert file.expires_at - file.created_at == 3600
    assert client.files.retrieve(file.id).filename == "a.jsonl"
    assert client.files.content(file.id).content == b"{}"
    assert file.id in [one.id for one in client.files.list(limit=1)]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
    names = [one.id for one in client.batches.list(limit=2)]
    assert len(set(names)) == len(names) >= 3


def waiting_lines(server: FerryServer) -> float:
    text = server.http.get(f"{server.metrics}/metrics", timeout=10).text
    found = re.search(r'ferry_jobs_waiting\{[^}]*"idle"[^}]*\} (\S+)', text)
    return float(found[1]) if found else -1


def test_answers_about_files_and_batches_are_as_described(bulk):
    # Given
    base = f"{bulk.management}/v1"
    described = Described(bulk.http.request("OPTIONS", bulk.management, timeout=10).json())
    file = bulk.http.post(
        f"{base}/files",
        files={"file": ("in.jsonl", b"{}\n")},
        data={"purpose": "batch", "expires_after[anchor]": "created_at"}
        | {"expires_after[seconds]": "3600"},
        timeout=10,
    )
    asked = {"input_file_id": file.json()["id"], "endpoint": "/predictions", "metadata": {"a": "b"}}
    batch = bulk.http.post(f"{base}/batches", json=asked, timeout=10)
    file_url, batch_url = (
        f"{base}/files/{file.json()['id']}",
        f"{base}/batches/{batch.json()['id']}",
    )
    eventually(lambda: bulk.http.get(batch_url, timeout=10).json()["status"] in ENDED, 30)

    # When each route is asked
    answers = {"createFile": file, "createBatch": batch}
    answers |= {
        operation: bulk.http.request(method, url, timeout=10)
        for operation, method, url in (
            ("listFiles", "GET", f"{base}/files?limit=2"),
            ("retrieveFile", "GET", file_url),
            ("downloadFile", "GET", f"{file_url}/content"),
            ("listBatches", "GET", f"{base}/batches"),
            ("retrieveBatch", "GET", batch_url),
            ("cancelBatch", "POST", f"{batch_url}/cancel"),
            ("deleteFile", "DELETE", file_url),
        )
    }
    gone = bulk.http.get(file_url, timeout=10)
    refused = bulk.http.post(f"{base}/batches", json={}, timeout=10)

    # Then
    complaints = {name: described.complaints(name, answer) for name, answer in answers.items()}
    assert complaints == {name: [] for name in answers}
    assert {answer.status_code for answer in answers.values()} == {200}
    assert (gone.status_code, described.complaints("retrieveFile", gone)) == (404, [])
    assert (refused.status_code, described.complaints("createBatch", refused)) == (400, [])


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/jobs"])
def test_limit_that_is_no_number_is_told_but_not_by_torchserves_list(bulk, path):
    answer = bulk.http.get(f"{bulk.management}{path}?limit=x", timeout=10)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith("limit must be a whole number, 1 or more")
    assert bulk.http.get(f"{bulk.management}/models?limit=x", timeout=10).status_code == 200


def test_cancelled_batch_ends_and_leaves_nothing_in_the_queue(bulk, client):
    # Given a model without a worker
    with bulk.model("echo-1.0.mar", "idle", initial_workers=0):
        lines = [line(f"n{n}", n, url="/predictions/idle") for n in range(30)]
        batch = start(client, [*lines, "no JSON"])
        eventually(lambda: waiting_lines(bulk) == 30, 20)

        # When
        assert client.batches.cancel(batch.id).status == "cancelling"
        batch = ended(client, batch)

        # Then
        assert batch.status == "cancelled"
        assert batch.request_counts.to_dict() == {"total": 31, "completed": 0, "failed": 1}
        eventually(lambda: waiting_lines(bulk) == 0, 20)


def test_thousands_of_lines_are_answered_each_under_its_own_id(bulk, client):
    # Given 5,000 lines, three of them bad
    lines: list[Any] = [line(f"n-{n}", {"n": n}) for n in range(5000)]
    lines[7], lines[2500], lines[4999] = "no JSON", line("x", 1, method="PUT"), "{}"

    # When
    batch = ended(client, start(client, lines), 60)

    # Then
    assert batch.status == "completed"
    assert batch.request_counts.to_dict() == {"total": 5000, "completed": 4997, "failed": 3}
    answers = lines_of(client, batch.output_file_id)
    assert sorted(one["response"]["body"]["got"]["n"] for one in answers) == [
        n for n in range(5000) if n not in {7, 2500, 4999}
    ]
    assert all(one["custom_id"] == f"n-{one['response']['body']['got']['n']}" for one in answers)
    assert len(lines_of(client, batch.error_file_id)) == 3


def resident_bytes(server: FerryServer) -> int:
    lines = [one for one in server.process.family() if one.endswith("-m ingress")]
    return int(psutil.Process(int(lines[0].split()[0])).memory_info().rss)


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


def test_uploads_that_take_long_hold_up_nothing_else(bulk):
    # Given more uploads than the server has threads, of which only the beginning has come
    head = (
        b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n"
        b"content-type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        b'content-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    )
    folder = bulk.folder / "data" / "bulk" / "files"
    before = set(folder.iterdir())
    with contextlib.ExitStack() as uploads:
        for _ in range(40):
            address = ("127.0.0.1", bulk.port + 1)
            uploads.enter_context(socket.create_connection(address)).sendall(head + b"x" * 100_000)
        eventually(lambda: len(set(folder.iterdir()) - before) >= FILES_AT_ONCE)

        # When / Then
        assert bulk.http.get(f"{bulk.management}/models", timeout=5).status_code == 200
        assert bulk.http.get(f"{bulk.inference}/ping", timeout=5).status_code == 200
    eventually(lambda: set(folder.iterdir()) == before)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_large_file_passes_and_the_ingress_does_not_grow(bulk, client, is_chunked):
    # When it is sent, and read
    before = resident_bytes(bulk)
    answer = upload(bulk.management, MOST_BYTES, is_chunked=is_chunked)
    assert answer.status_code == 200, answer.text
    uploaded = resident_bytes(bulk)
    size = 0
    with client.files.with_streaming_response.content(answer.json()["id"]) as content:
        for piece in content.iter_bytes():
            size += len(piece)
    downloaded = resident_bytes(bulk)

    # Then
    assert size == answer.json()["bytes"] == MOST_BYTES
    assert max(uploaded, downloaded) - before < 30_000_000


@pytest.mark.parametrize("is_chunked", [False, True])
def test_file_over_the_limit_is_refused_and_not_kept(bulk, is_chunked):
    files = bulk.folder / "data" / "bulk" / "files"
    before = set(files.iterdir())
    try:
        answer = upload(bulk.management, MOST_BYTES + 1_000_000, is_chunked=is_chunked)
        assert answer.status_code == 413
        assert "bulk_max_file_size" in answer.json()["message"]
    except httpx.WriteError:
        pass  # refused while it was still being sent
    eventually(lambda: set(files.iterdir()) == before)
