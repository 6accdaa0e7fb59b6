"""What clients may do with files and batches, and what becomes of old ones."""

import io

import pytest

from ferry_bulk.app import BulkApp
from ferry_bulk.folder import KEPT_S, BulkFolder, entering, now_s


@pytest.fixture
def folder(tmp_path):
    folder = BulkFolder(tmp_path)
    with folder.taken():
        yield folder


@pytest.fixture
def http(folder):
    return BulkApp(folder, max_file_bytes=1000).test_client()


def upload(http, content=b"{}\n", **form):
    data = {"purpose": "batch", "file": (io.BytesIO(content), "in.jsonl"), **form}
    return http.post("/v1/files", data=data)


def file_id_of(http):
    return upload(http).json["id"]


def create(http, file_id, **changes):
    asked = {"input_file_id": file_id, "endpoint": "/predictions/m", **changes}
    return http.post("/v1/batches", json=asked)


def test_batch_is_created_shown_and_cancelled(http, folder):
    # When
    batch = create(http, file_id_of(http), completion_window="7d", metadata={"of": "me"}).json
    # Then
    assert (batch["status"], batch["metadata"]) == ("validating", {"of": "me"})
    assert batch["expires_at"] - batch["created_at"] == 7 * 86_400
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert http.get(f"/v1/batches/{batch['id']}").json == batch
    # And a wish to cancel it is seen at once, though the feeder has not
    assert http.post(f"/v1/batches/{batch['id']}/cancel").json["status"] == "cancelling"
    assert folder.batch(batch["id"])["status"] == "validating"
    # But one that has ended is not cancelled
    ended = create(http, batch["input_file_id"]).json
    folder.save_batch(entering(ended, "completed"))
    assert http.post(f"/v1/batches/{ended['id']}/cancel").json["status"] == "completed"
    assert not folder.is_to_cancel(ended["id"])


def test_file_is_deleted_unless_a_batch_reads_it(http, folder):
    file_id = file_id_of(http)
    batch = create(http, file_id).json
    assert http.delete(f"/v1/files/{file_id}").status_code == 409
    folder.save_batch(entering(batch, "failed"))
    assert http.delete(f"/v1/files/{file_id}").json["deleted"]
    assert http.get(f"/v1/files/{file_id}").status_code == 404
    assert not folder.lines_path(file_id).exists()


@pytest.mark.parametrize("name", ["file-1", "..%2Flock", "file-" + "0" * 32, "batch_" + "0" * 32])
def test_unknown_ids_are_told(http, name):
    for kind in ("files", "batches"):
        answer = http.get(f"/v1/{kind}/{name}")
        assert (answer.status_code, answer.json["code"]) == (404, 404)


@pytest.mark.parametrize(
    "changes",
    [
        {"input_file_id": None},
        {"endpoint": None},
        {"endpoint": "/v1/chat/completions"},
        {"endpoint": "/predictions/m/1/more"},
        {"completion_window": "24"},
        {"completion_window": 24},
        {"metadata": [1]},
        {"metadata": {"a": 1}},
        {"metadata": {str(n): "" for n in range(17)}},
        {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
        {"output_expires_after": "later"},
    ],
)
def test_batch_that_cannot_be_is_refused(http, folder, changes):
    assert create(http, file_id_of(http), **changes).status_code == 400
    assert folder.batches() == []


def test_upload_says_how_long_it_is_kept_and_comes_back(http):
    expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = upload(http, b"one\n", **expiry).json
    assert (file["expires_at"] - file["created_at"], file["bytes"]) == (3600, 4)
    with http.get(f"/v1/files/{file['id']}/content") as answer:
        assert answer.data == b"one\n"


@pytest.mark.parametrize(
    ("content", "form", "status"),
    [
        (b"", {"purpose": "fine-tune"}, 400),
        (b"", {"other": (io.BytesIO(b""), "b")}, 400),
        (b"", {"expires_after[anchor]": "created_at"}, 400),
        (b"x" * 1001, {}, 413),
        (b"x" * 100_000, {}, 413),
    ],
)
def test_upload_that_is_refused_leaves_nothing(http, folder, content, form, status):
    assert upload(http, content, **form).status_code == status
    assert sorted(path.name for path in folder.path.rglob("*")) == ["batches", "files", "lock"]


def test_upload_that_is_no_form_with_a_file_is_refused(http):
    assert http.post("/v1/files", json={}).status_code == 400
    assert http.post("/v1/files", data={"purpose": "batch"}).status_code == 400


def test_lists_come_in_pages(http):
    ids = {file_id_of(http) for _ in range(5)}
    seen, after = [], ""
    while True:
        page = http.get(f"/v1/files?limit=2&after={after}&purpose=batch").json
        seen += [file["id"] for file in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert (len(seen), set(seen)) == (5, ids)
    assert http.get("/v1/files?purpose=other").json["data"] == []
    assert http.get("/v1/files?limit=x").status_code == 400
    # And a client whose last file is gone is not sent back to the first page
    http.delete(f"/v1/files/{seen[1]}")
    assert http.get(f"/v1/files?after={seen[1]}").status_code == 400
    nothing = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert http.get("/v1/batches").json == nothing


def test_own_port_asks_for_its_token_and_refuses_web_pages(folder):
    http = BulkApp(folder, max_file_bytes=1000, token="secret").test_client()
    assert http.get("/ping").status_code == 200
    assert http.get("/v1/files").status_code == 401
    for sent, status in (("wrong", 401), ("secret", 200)):
        headers = {"Authorization": f"Bearer {sent}"}
        assert http.get("/v1/files", headers=headers).status_code == status
    headers = {"Authorization": "Bearer secret", "Origin": "http://evil"}
    assert http.post("/v1/batches", json={}, headers=headers).status_code == 403


def test_folder_is_one_process_alone(tmp_path, folder):
    with pytest.raises(OSError, match="another ferry-bulk"), BulkFolder(tmp_path).taken():
        pass


def test_old_files_and_batches_are_swept_but_not_those_in_use(http, folder):
    # Given an old file that a batch reads, one that none reads, and a batch that ended long ago
    used, unused, new = (file_id_of(http) for _ in range(3))
    for file_id in (used, unused):
        folder.show_file(file_id, "in.jsonl", "batch", ttl_s=-1)
    running = create(http, used).json["id"]
    ended = entering(create(http, new).json, "completed")
    folder.save_batch({**ended, "completed_at": now_s() - KEPT_S})
    # When
    folder.sweep()
    # Then
    assert {file["id"] for file in folder.files()} == {used, new}
    assert [batch["id"] for batch in folder.batches()] == [running]
