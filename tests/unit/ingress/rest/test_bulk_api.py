"""On which ports files and batches are, for which clients, and what a folder has to do with it."""

import errno
import io
from dataclasses import replace
from pathlib import Path

import pytest

from ingress.bulk import bulk_folder
from ingress.bulk.bulk_service import Upload
from ingress.rest.app import create_app
from ingress.role import Role


def client(ingress, role, **settings):
    services = replace(ingress.services, settings=replace(ingress.services.settings, **settings))
    return create_app(services, [role]).test_client()


def a_file():
    return {"purpose": "batch", "file": (io.BytesIO(b"{}"), "a.jsonl")}


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
def test_bulk_is_on_the_inference_port_only_where_a_setting_says_so(ingress, tmp_path, path):
    answer = client(ingress, Role.INFERENCE, data_dir=tmp_path).get(path)
    assert answer.status_code == 403
    assert "bulk_with_inference_key" in answer.get_json()["message"]
    opened = client(ingress, Role.INFERENCE, data_dir=tmp_path, bulk_with_inference_key=True)
    assert opened.get(path).get_json()["data"] == []
    assert client(ingress, Role.MANAGEMENT, data_dir=tmp_path).get(path).status_code == 200
    assert client(ingress, Role.METRICS, data_dir=tmp_path).get(path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/files"), ("GET", "/v1/batches"), ("DELETE", "/v1/files/f")]
)
def test_without_a_folder_there_is_no_bulk(ingress, method, path):
    answer = client(ingress, Role.MANAGEMENT).open(path, method=method)
    assert answer.status_code == 501
    assert "--data-dir" in answer.get_json()["message"]


def test_web_page_cannot_upload(ingress, tmp_path):
    manager = client(ingress, Role.MANAGEMENT, data_dir=tmp_path)
    answer = manager.post("/v1/files", data=a_file(), headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert not (tmp_path / "bulk").exists()


def test_files_are_for_the_user_of_the_server_only(ingress, tmp_path):
    manager = client(ingress, Role.MANAGEMENT, data_dir=tmp_path)
    assert manager.post("/v1/files", data=a_file()).status_code == 200
    made = [path for path in (tmp_path / "bulk").rglob("*")]
    assert len(made) == 4
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_file_that_the_disk_does_not_take_is_refused_and_not_kept(ingress, tmp_path, monkeypatch):
    # Given a disk that is full
    monkeypatch.setattr(Upload, "open", lambda _: Path("/dev/full").open("wb"))  # noqa: SIM115
    manager = client(ingress, Role.MANAGEMENT, data_dir=tmp_path)

    # When
    form = {"purpose": "batch", "file": (io.BytesIO(b"x" * 100_000), "a.jsonl")}
    answer = manager.post("/v1/files", data=form)

    # Then
    assert answer.status_code == 507
    assert "No space left on device" in answer.get_json()["message"]
    assert list((tmp_path / "bulk" / "files").iterdir()) == []

    # And so is a batch
    monkeypatch.undo()
    file_id = manager.post("/v1/files", data=a_file()).get_json()["id"]
    monkeypatch.setattr(bulk_folder, "write_atomically", no_room)
    asked = {"input_file_id": file_id, "endpoint": "/predictions"}
    assert manager.post("/v1/batches", json=asked).status_code == 507


@pytest.mark.parametrize(
    "file_id", ["file-0", "..%2f..%2fin.jsonl", "file-" + "0" * 31 + "%00", "f" * 5000]
)
def test_no_id_leads_out_of_the_folder(ingress, tmp_path, file_id):
    (tmp_path / "in.jsonl").write_text("secret")
    manager = client(ingress, Role.MANAGEMENT, data_dir=tmp_path)
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        assert manager.get(path).status_code == 404
    assert manager.delete(f"/v1/files/{file_id}").status_code == 404
    asked = {"input_file_id": file_id, "endpoint": "/predictions"}
    assert manager.post("/v1/batches", json=asked).status_code == 404
    assert (tmp_path / "in.jsonl").exists()
