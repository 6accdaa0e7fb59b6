"""One batch at a server that answers as it is told, refuses, forgets, or is away."""

import io
import json
import threading

import pytest

from ferry_bulk import batch_run, feeder, model_server
from ferry_bulk.app import BulkApp
from ferry_bulk.batch_run import BatchRun
from ferry_bulk.folder import BulkFolder, now_s, output_ids
from ferry_bulk.lines import output_line
from ferry_bulk.model_server import ModelServer, ServerAnswer, kind_of
from packages.bulk.tests.bulk_process import line
from tests.http_server import StandIn
from tests.support import eventually

JOB_PATH = "/jobs/" + "0" * 31 + "a"
RESULT = {"preference-applied": "wait=2"}


class Server(StandIn):
    """Answers each prediction with its own body, after the `answers`."""

    def __init__(self):
        super().__init__(self._answer)
        self.answers = []

    def _answer(self, _method, _path, body):
        return self.answers.pop(0) if self.answers else (200, RESULT, body)


@pytest.fixture
def server():
    with Server().running() as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    folder = BulkFolder(tmp_path)
    with folder.taken():
        yield folder


@pytest.fixture
def models(server):
    models = ModelServer(server.url, lambda: "key")
    yield models
    models.close()


@pytest.fixture
def make_run(folder, models):
    def make(lines, **changes):
        http = BulkApp(folder, max_file_bytes=10**6).test_client()
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
        file = folder.add_file(io.BytesIO(text.encode()), "in.jsonl", 3600)
        asked = {"input_file_id": file["id"], "endpoint": "/predictions"}
        batch = {**http.post("/v1/batches", json=asked).json, **changes}
        folder.save_batch(batch)
        return BatchRun(batch, folder, models, in_flight=4)

    return make


def written(folder, batch):
    """Returns what the output and the error file have, by custom_id."""
    found = []
    for file_id in output_ids(batch):
        texts = folder.lines_path(file_id).read_text().splitlines()
        found.append(
            {one["custom_id"]: one["response"] or one["error"] for one in map(json.loads, texts)}
        )
        assert len(found[-1]) == len(texts)
    return found


def test_each_line_is_answered_under_its_own_id(folder, server, make_run):
    # When
    run = make_run([*(line(f"n{n}", n) for n in range(50)), "no JSON"])
    run.run()
    # Then
    batch = folder.batch(run.batch["id"])
    assert (batch["status"], batch["request_counts"]) == (
        "completed",
        {"total": 51, "completed": 50, "failed": 1},
    )
    output, errors = written(folder, batch)
    assert {name: one["body"] for name, one in output.items()} == {f"n{n}": n for n in range(50)}
    assert errors[None]["code"] == "invalid_json_line"
    # And each was sent once, as a job with a key of its own, and with the server's token
    keys = {headers["idempotency-key"] for _, _, headers, _ in server.asked}
    assert keys == {f"{batch['id']}-{n}" for n in range(50)}
    assert len(server.asked) == 50
    assert {headers["prefer"] for _, _, headers, _ in server.asked} == {"respond-async, wait=2"}
    assert {headers["authorization"] for _, _, headers, _ in server.asked} == {"Bearer key"}


def test_run_that_was_killed_goes_on_after_its_last_whole_line(folder, server, make_run):
    # Given a run of four lines, of which one was written, and half of another one
    run = make_run([line(f"n{n}", n) for n in range(4)])
    counts = {"total": 4, "completed": 0, "failed": 0}
    run.batch = {**run.batch, "status": "in_progress", "request_counts": counts}
    answers = [
        output_line(run.batch["id"], n, f"n{n}", response={"status_code": 200, "body": n})
        for n in (2, 1)
    ]
    folder.lines_path(output_ids(run.batch)[0]).write_bytes(answers[0] + answers[1][:-9])
    # When
    run.run()
    # Then
    output, errors = written(folder, run.batch)
    assert {name: one["body"] for name, one in output.items()} == {f"n{n}": n for n in range(4)}
    assert errors == {}
    assert len(server.asked) == 3
    assert folder.batch(run.batch["id"])["request_counts"]["completed"] == 4


def test_line_that_takes_longer_is_asked_for_by_its_job_and_sent_again_if_that_is_lost(
    folder, server, make_run
):
    # Given a job that the server forgets, another one that is refused, and one that has ended
    accepted = (202, {"location": f"http://x{JOB_PATH}"}, b"{}")
    server.answers = [
        accepted,
        (404, {}, b"{}"),
        (503, {"retry-after": "1"}, b"{}"),
        accepted,
        (202, {}, b"{}"),
        (503, {"x-request-id": JOB_PATH[6:]}, b'{"code": 503}'),
    ]
    run = make_run([line("a", 1)])
    # When
    run.run()
    # Then the job's answer, whatever it is, is the line's
    assert [f"{method} {path}" for method, path, *_ in server.asked] == [
        "POST /predictions/echo",
        f"GET {JOB_PATH}/result",
        "POST /predictions/echo",
        "POST /predictions/echo",
        f"GET {JOB_PATH}/result",
        f"GET {JOB_PATH}/result",
    ]
    _, errors = written(folder, run.batch)
    assert errors["a"] == {
        "status_code": 503,
        "request_id": JOB_PATH[6:],
        "body": {"code": 503},
    }


def test_unknown_model_is_waited_for_and_then_refused(folder, server, make_run, monkeypatch):
    monkeypatch.setattr(model_server, "UNKNOWN_S", 0.2)
    reason = {"x-ferry-reason": "version_not_found"}
    server.answers = [(404, reason, b'{"message": "No such model."}')] * 100
    run = make_run([line("a", 1)])
    run.run()
    _, errors = written(folder, run.batch)
    assert errors == {"a": {"code": "version_not_found", "message": "No such model."}}
    assert len(server.asked) > 1


def test_cancelled_batch_cancels_its_jobs_and_keeps_what_has_finished(folder, server, make_run):
    # Given a run with a job under way
    still_runs = [(202, {"location": f"http://x{JOB_PATH}"}, b"{}")] * 10_000
    run = make_run([line("a", 1), line("b", 2), "no JSON"])
    server.answers = [(200, RESULT, b"1"), *still_runs]
    thread = threading.Thread(target=run.run)
    thread.start()
    eventually(lambda: len(server.asked) > 3)
    # When
    folder.ask_to_cancel(run.batch["id"])
    thread.join(10)
    # Then
    batch = folder.batch(run.batch["id"])
    assert batch["status"] == "cancelled"
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 1}
    assert ("DELETE", JOB_PATH) in [(method, path) for method, path, *_ in server.asked]


def test_expired_batch_says_so_of_each_line_that_has_no_answer(folder, make_run):
    run = make_run([line("a", 1), "no JSON", line("c", 3)], expires_at=now_s())
    run.run()
    batch = folder.batch(run.batch["id"])
    assert (batch["status"], batch["request_counts"]["failed"]) == ("expired", 3)
    _, errors = written(folder, batch)
    assert {one["code"] for one in errors.values()} == {"batch_expired"}
    assert set(errors) == {"a", None, "c"}


def test_batch_without_lines_or_without_file_fails(folder, make_run):
    run, gone = make_run(["", " "]), make_run(["{}"])
    folder.delete_file(gone.batch["input_file_id"])
    for one in (run, gone):
        one.run()
    errors = [folder.batch(one.batch["id"])["errors"]["data"][0]["message"] for one in (run, gone)]
    assert errors == ["The input file has no lines.", "The input file is gone."]


def test_full_disk_stops_the_run_and_the_next_one_goes_on(folder, make_run, monkeypatch):
    # Given
    run = make_run([line(f"n{n}", n) for n in range(20)])
    with monkeypatch.context() as patch:
        patch.setattr(batch_run, "output_line", _no_room)
        with pytest.raises(OSError, match="no room"):
            run.run()
    # When
    again = BatchRun(folder.batch(run.batch["id"]), folder, run._server, in_flight=4)
    again.run()
    # Then
    assert folder.batch(run.batch["id"])["request_counts"]["completed"] == 20


def test_feeder_runs_each_batch_and_one_that_stopped_again(folder, models, make_run, monkeypatch):
    # Given two batches, of which one stops when it is run first, and a record that is no JSON
    monkeypatch.setattr(feeder, "_AGAIN_S", 0.05)
    ids = [make_run([line("a", 1)]).batch["id"] for _ in range(2)]
    (folder.path / "batches" / f"batch_{'0' * 32}.json").write_text("{")
    stopped = []

    def make(batch):
        if batch["id"] == ids[0] and not stopped:
            stopped.append(batch["id"])
            raise OSError("no room")
        return BatchRun(batch, folder, models, in_flight=4)

    runner = feeder.Feeder(folder, make)
    # When / Then
    eventually(
        lambda: runner._look() or {folder.batch(one)["status"] for one in ids} == {"completed"}, 10
    )
    assert stopped == ids[:1]
    runner._threads.shutdown()


def _no_room(*_, **__):
    raise OSError("no room")


@pytest.mark.parametrize(
    ("status", "headers", "job_path", "expected"),
    [
        (200, RESULT, "", "result"),
        (503, RESULT, "", "result"),
        (404, RESULT, "", "result"),
        (200, {}, "", "result"),
        (400, {}, "", "result"),
        (413, {}, "", "result"),
        (202, {"location": JOB_PATH}, "", "job"),
        (202, {}, JOB_PATH, "job"),
        (202, {"x-request-id": JOB_PATH[6:]}, JOB_PATH, "result"),
        (410, {}, JOB_PATH, "result"),
        (404, {}, JOB_PATH, "lost"),
        (404, {}, "", "unknown_model"),
        (422, {"x-ferry-reason": "idempotency_key_reused"}, "", "key_reused"),
        (401, {}, "", "later"),
        (429, {}, "", "later"),
        (503, {"retry-after": "1"}, "", "later"),
        (502, {}, JOB_PATH, "later"),
    ],
)
def test_what_an_answer_means(status, headers, job_path, expected):
    assert kind_of(ServerAnswer(status, headers, b""), job_path) == expected
    body = b'{"code": 400, "type": "InvalidKeyException", "message": "Token"}'
    assert kind_of(ServerAnswer(400, {}, body), "") == "later"
