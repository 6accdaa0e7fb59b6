"""TorchServe's log files: lines of several processes, sorted by their origin."""

import logging
import os
from pathlib import Path

import pytest

from batching.process.logs import LineFormatter
from batching.settings.settings import Settings
from ferry.process_tree.log_files import LogFiles
from workers.handling.metrics_reporter import MetricsFile

ACCESS = '2026-01-01T00:00:00.000Z INFO ACCESS_LOG /127.0.0.1:1 "GET /ping HTTP/1.1" 200 0\n'
METRIC = "2026-01-01T00:00:00.000Z INFO TS_METRICS Requests2XX.Count:1.0|#Level:Host|#hostname:h\n"
SERVER = "2026-01-01T00:00:00.000Z ERROR ingress.server it broke\nTraceback:\n  line\nError: x\n"
PRINTED = "printed by a handler\n"
MODEL_METRIC = "2026-01-01T00:00:00.000Z INFO MODEL_METRICS HandlerTime.ms:1.0|#\n"


@pytest.fixture(autouse=True)
def no_metrics_location(monkeypatch):
    monkeypatch.delenv("METRICS_LOCATION", raising=False)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_each_line_is_in_the_file_where_operators_look(tmp_path):
    # Given
    shown = []
    # When
    with LogFiles(tmp_path / "logs", shown.append) as logs:
        os.write(logs.stderr_fd, (ACCESS + METRIC + SERVER).encode())
        os.write(logs.stdout_fd, (PRINTED + MODEL_METRIC + PRINTED).encode())
        logs.say("Stopping.")
    # Then
    read = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert read == {
        "access_log.log": ACCESS,
        "ts_metrics.log": METRIC,
        "ts_log.log": SERVER + "Stopping.\n",
        "model_log.log": PRINTED + PRINTED,
        "model_metrics.log": "",
    }
    # And all of it was shown
    console = b"\n".join(shown).decode() + "\n"
    for text in (ACCESS, METRIC, SERVER, PRINTED, MODEL_METRIC):
        assert text in console


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk_is_said_once(tmp_path, capfd):
    # Given a file on a full disk
    shown = []
    file = tmp_path / "ts_log.log"
    file.symlink_to("/dev/full")
    # When
    with LogFiles(tmp_path, lambda line: shown.append(line.decode())) as logs:
        for number in range(3):
            logs.say(f"line {number}")
    # Then all is on the console, and nothing but that
    assert [line for line in shown if line.startswith("line")] == ["line 0", "line 1", "line 2"]
    [complaint] = [line for line in shown if not line.startswith("line")]
    assert complaint.startswith(f"cannot write {file}: ")
    assert "No space left" in complaint
    assert "Traceback" not in capfd.readouterr().err


def test_b19_line_that_a_client_forges_stays_with_the_event_it_is_part_of(tmp_path):
    # Given
    formatter, forged = LineFormatter({"model": "m"}), f"x\n{ACCESS}{METRIC}y"
    raised = (ValueError, ValueError(forged), None)
    events = [("handler", forged, None), ("MODEL_METRICS", forged, None), ("worker", "no", raised)]
    # When
    with LogFiles(tmp_path, str) as logs:
        for name, text, traceback in events:
            record = logging.LogRecord(name, logging.ERROR, "", 0, text, (), traceback)
            os.write(logs.stderr_fd, f"{formatter.format(record)}\n".encode())
    # Then
    lines = {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    assert {name: count for name, count in lines.items() if count} == {"ts_log.log": 4 + 5}


def test_metric_files_have_a_folder_of_their_own_when_it_is_named(tmp_path, monkeypatch):
    # Given
    monkeypatch.setenv("METRICS_LOCATION", str(tmp_path / "metrics"))
    # When
    with LogFiles(tmp_path / "logs", str) as logs:
        # Then they are there before the first line, for programs that follow them
        assert names_in(tmp_path / "logs") == ["access_log.log", "model_log.log", "ts_log.log"]
        assert names_in(tmp_path / "metrics") == ["model_metrics.log", "ts_metrics.log"]
        os.write(logs.stderr_fd, (ACCESS + METRIC).encode())
    # Then
    assert (tmp_path / "logs" / "access_log.log").read_text() == ACCESS
    assert (tmp_path / "metrics" / "ts_metrics.log").read_text() == METRIC


@pytest.mark.parametrize("is_of_metrics", [False, True], ids=["logs", "metrics"])
def test_server_goes_on_when_a_folder_cannot_be_made(is_of_metrics, tmp_path, monkeypatch):
    # Given a place where no folder can be made, as in a read-only container
    blocked = tmp_path / "file" / "logs"
    blocked.parent.touch()
    if is_of_metrics:
        monkeypatch.setenv("METRICS_LOCATION", str(blocked))
    lines = []
    # When
    with LogFiles(tmp_path / "logs" if is_of_metrics else blocked, lines.append) as logs:
        os.write(logs.stderr_fd, (METRIC + SERVER).encode() * 2)
        os.write(logs.stdout_fd, (MODEL_METRIC + PRINTED).encode() * 2)
    # Then the console has each line, and for each file once that it cannot be written
    shown = b"\n".join(lines).decode() + "\n"
    assert [shown.count(text) for text in (METRIC, PRINTED, MODEL_METRIC)] == [2, 2, 2]
    files = ["model_metrics.log", "ts_metrics.log"]
    files += [] if is_of_metrics else ["access_log.log", "model_log.log", "ts_log.log"]
    complaints = [line for line in shown.splitlines() if line.startswith("cannot write ")]
    assert {line.split(":")[0] for line in complaints} == {
        f"cannot write {blocked / name}" for name in files
    }
    assert len(complaints) == len(files)


def test_files_are_rolled_and_old_ones_go(tmp_path):
    # When
    with LogFiles(tmp_path, str, max_bytes=100, old_files=2) as logs:
        for number in range(50):
            os.write(logs.stdout_fd, f"line {number:04}\n".encode())
    # Then
    names = [name for name in names_in(tmp_path) if name.startswith("model_log")]
    assert names == ["model_log.log", "model_log.log.1", "model_log.log.2"]
    assert "line 0049\n" in (tmp_path / "model_log.log").read_text()


def test_file_that_workers_write_is_rolled_when_they_have_filled_it(tmp_path, monkeypatch):
    # Given a worker that appends to it
    monkeypatch.setenv("METRICS_LOCATION", str(tmp_path))
    logger = logging.Logger("MODEL_METRICS")
    logger.addHandler(file := MetricsFile(Settings()))
    # When each line is also shown
    lines = [f"{number:04}" for number in range(50)]
    with LogFiles(tmp_path, str, max_bytes=200, old_files=50) as logs:
        for line in lines:
            logger.info(line)
            os.write(logs.stdout_fd, MODEL_METRIC.encode())
    file.close()
    # Then every line is in one of the files, once and in order
    paths = [path for path in tmp_path.iterdir() if path.name.startswith("model_metrics")]
    paths.sort(key=lambda path: -int(f"0{path.suffix.strip('.log')}"))
    found = [line.split()[-1] for path in paths for line in path.read_text().splitlines()]
    assert found == lines
    assert len(paths) > 1


def test_worker_says_once_that_the_file_of_metrics_cannot_be_written(
    tmp_path, monkeypatch, caplog, capsys
):
    # Given
    blocked = tmp_path / "file" / "logs"
    blocked.parent.touch()
    monkeypatch.setenv("METRICS_LOCATION", str(blocked))
    logger = logging.Logger("MODEL_METRICS")
    logger.addHandler(MetricsFile(Settings()))
    # When
    for _ in range(2):
        logger.info("HandlerTime.ms:1.0|#")
    # Then
    [complaint] = caplog.messages
    assert complaint.startswith(f"cannot write {blocked / 'model_metrics.log'}: ")
    assert "Traceback" not in capsys.readouterr().err
