"""What clients may do with files and batches, and what becomes of old ones."""

import msgspec
import pytest

from batching.errors import BadRequest
from ingress.bulk.bulk_errors import BatchNotFound, FileInUse, FileNotFound
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import BatchStatus, now_s
from ingress.bulk.bulk_service import BulkService, Upload, read_expiry_s, read_window_s
from ingress.bulk.feeder import BATCH_KEPT_S, sweep


@pytest.fixture
def folder(tmp_path):
    folder = BulkFolder(tmp_path)
    folder.create()
    return folder


@pytest.fixture
def service(folder):
    return BulkService(folder)


def upload(folder):
    one = Upload(folder, "in.jsonl")
    with one.open() as stream:
        stream.write(b"{}\n")
    return one.finish().file_id


def asked(file_id, **changes):
    return {"input_file_id": file_id, "endpoint": "/predictions/m", **changes}


def test_batch_is_created_shown_and_cancelled(folder, service):
    # When
    document = service.create_batch(asked(upload(folder), completion_window="7d"))
    # Then
    assert document["status"] == "validating"
    assert document["expires_at"] - document["created_at"] == 7 * 86_400
    assert document["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert service.show_batch(document["id"]) == document
    # And a wish to cancel it is seen at once, though the feeder has not
    assert service.cancel_batch(document["id"])["status"] == "cancelling"
    assert folder.batch(document["id"]).status is BatchStatus.VALIDATING


def test_batch_that_has_ended_is_not_cancelled(folder, service):
    document = service.create_batch(asked(upload(folder)))
    ended = folder.batch(document["id"]).entering(BatchStatus.COMPLETED)
    folder.save_batch(ended)
    assert service.cancel_batch(document["id"])["status"] == "completed"
    assert not folder.is_to_cancel(document["id"])


def test_file_is_deleted_unless_a_batch_reads_it(folder, service):
    file_id = upload(folder)
    document = service.create_batch(asked(file_id))
    with pytest.raises(FileInUse):
        service.delete_file(file_id)
    folder.save_batch(folder.batch(document["id"]).entering(BatchStatus.FAILED))
    service.delete_file(file_id)
    with pytest.raises(FileNotFound):
        folder.file(file_id)
    assert not folder.lines_path(file_id).exists()


@pytest.mark.parametrize("file_id", ["", "file-1", "../lock", "file-" + "0" * 32, "a/b"])
def test_unknown_ids_are_told(service, file_id):
    with pytest.raises(FileNotFound):
        service.folder.file(file_id)
    with pytest.raises(BatchNotFound):
        service.show_batch(file_id)


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
def test_batch_that_cannot_be_is_refused(folder, service, changes):
    with pytest.raises(BadRequest):
        service.create_batch(asked(upload(folder)) | changes)
    assert folder.batches() == []


def test_windows_and_times_of_keeping():
    assert [read_window_s(text) for text in ("24h", "7d", "1h", "30d")] == [
        86_400,
        604_800,
        3_600,
        2_592_000,
    ]
    for text in ("0h", "31d", "9999d", "1w", "-1h", "", None):
        with pytest.raises(BadRequest):
            read_window_s(text)
    assert read_expiry_s({"anchor": "created_at", "seconds": 3600}) == 3600
    for value in (True, "3600", 3599, 2_592_001):
        with pytest.raises(BadRequest):
            read_expiry_s({"anchor": "created_at", "seconds": value})


def test_lists_come_in_pages(folder, service):
    ids = {upload(folder) for _ in range(5)}
    seen, after = [], ""
    while True:
        page = service.list_files(2, after, "batch")
        seen += [one["id"] for one in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert len(seen) == 5
    assert set(seen) == ids
    assert service.list_files(100, "", "other")["data"] == []
    # And a client whose last file is gone is not sent back to the first page
    service.delete_file(seen[1])
    with pytest.raises(BadRequest, match="after"):
        service.list_files(2, seen[1], "batch")
    assert service.list_batches(100, "") == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_old_files_and_batches_are_swept_but_not_those_in_use(folder, service):
    # Given an old file that a batch reads, one that none reads, and a batch that ended long ago
    used, unused, new = (upload(folder) for _ in range(3))
    for file_id in (used, unused):
        folder.save_file(msgspec.structs.replace(folder.file(file_id), expires_at=now_s() - 1))
    running = service.create_batch(asked(used))["id"]
    ended = folder.batch(service.create_batch(asked(new))["id"]).entering(BatchStatus.COMPLETED)
    long_ago = {"completed": now_s() - BATCH_KEPT_S}
    folder.save_batch(msgspec.structs.replace(ended, moments=long_ago))
    # When
    sweep(folder)
    # Then
    assert {file.file_id for file in folder.files()} == {used, new}
    assert [batch.batch_id for batch in folder.batches()] == [running]


def test_unreadable_record_is_left_out(folder, service, caplog):
    upload(folder)
    (folder.path / "files" / ("file-" + "0" * 32 + ".json")).write_text("{")
    assert len(folder.files()) == 1
    assert "unreadable record" in caplog.text
