"""The supervisor of `ferry up`: starts in order, revives, stops in the reverse order."""

import contextlib
import errno
import os
import signal
import sys
import threading
import time

import pytest

from batching.process.child_process import spawn
from batching.process.part import (
    LAUNCH_VARIABLE,
    READY_VARIABLE,
    REPEAT_WINDOW_S,
    Launch,
    launch,
    notify_ready,
)
from ferry.process_tree.supervisor import (
    Interrupted,
    ProcessPart,
    ReadyPipe,
    StartFailed,
    Supervisor,
)
from tests.support import eventually
from tests.timing import assert_within

# Writes its name when it starts and when SIGTERM ends it; `stubborn` ignores the signal.
CHILD = """
import os, signal, sys, time
name, log, stubborn, leaves_after_s = sys.argv[1:]
def note(word):
    with open(log, "a") as file:
        file.write(f"{word} {name}\\n")
def leave(*_):
    time.sleep(float(leaves_after_s))
    note("stopped")
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn == "yes" else leave)
note("started")
while True:
    signal.pause()
"""


class Scene:
    """Parts that write down what happens to them."""

    def __init__(self, folder):
        self.log = folder / "log"
        self.log.touch()
        self.reports = []

    def part(self, name, *, stubborn=False, leaves_after_s=0.0):
        words = (name, str(self.log), "yes" if stubborn else "no", str(leaves_after_s))
        argv = [sys.executable, "-S", "-c", CHILD, *words]
        return ProcessPart(name, lambda: spawn(argv, dict(os.environ)), 0.3)

    @contextlib.contextmanager
    def running(self, *parts, stop_timeout_s=10.0):
        """Starts the parts, and waits until each has written down that it was started."""
        report = self.reports.append
        with Supervisor(parts, stop_timeout_s=stop_timeout_s, report=report) as supervisor:
            supervisor.start(*parts)
            started = {f"started {part.name}" for part in parts}
            supervisor.wait_until(lambda: started <= set(self.lines()), timeout_s=10)
            yield supervisor

    def lines(self):
        return self.log.read_text().splitlines()


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def end_once(predicate):
    """The supervisor is told to end when this is true, and also when it never is."""
    try:
        eventually(predicate, 10)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def in_background(step, *arguments):
    """Runs a step beside the supervisor, which owns the main thread."""
    thread = threading.Thread(target=step, args=arguments, daemon=True)
    thread.start()
    return thread


def test_supervisor_stops_its_parts_in_the_reverse_order(scene):
    # Given
    parts = scene.part("redis"), scene.part("node"), scene.part("ingress")
    with scene.running(*parts) as supervisor:
        # When
        supervisor.stop()
    # Then
    assert scene.lines()[3:] == ["stopped ingress", "stopped node", "stopped redis"]
    assert scene.reports == []


def test_supervisor_stops_the_parts_of_a_group_together(scene):
    # Given one that would take all the time alone, beside one that needs some
    slow = scene.part("ingress", leaves_after_s=1.0)
    stubborn = scene.part("ingress 2", stubborn=True)
    slow.group = stubborn.group = "ingress"
    with scene.running(scene.part("node"), slow, stubborn) as supervisor:
        # When
        supervisor.stop()
    # Then
    assert scene.lines()[3:] == ["stopped ingress", "stopped node"]
    assert scene.reports == ["ingress 2 did not stop in time and was killed"]


def test_supervisor_starts_a_part_again_when_it_dies(scene):
    # Given
    part = scene.part("node")
    with scene.running(part) as supervisor:
        first_pid = part.process.pid
        os.kill(first_pid, signal.SIGKILL)
        # When
        in_background(end_once, lambda: scene.lines().count("started node") == 2)
        supervisor.run()
        # Then
        assert part.process.pid != first_pid
        assert scene.reports == ["node ended with exit code -9; starting it again now"]


def test_supervisor_tries_again_when_its_system_starts_no_process(scene):
    # Given
    part = scene.part("node")
    launch, failures = part.launch, [OSError(errno.EAGAIN, "none left")]

    def launch_later():
        if failures:
            raise failures.pop()
        return launch()

    with scene.running(part) as supervisor:
        # When
        part.launch = launch_later
        os.kill(part.process.pid, signal.SIGKILL)
        in_background(end_once, lambda: scene.lines().count("started node") == 2)
        supervisor.run()
    # Then
    assert scene.reports == [
        "node ended with exit code -9; starting it again now",
        "node cannot be started: none left; starting it again in 1 s",
    ]


def test_supervisor_says_which_part_failed_when_one_ends_while_starting(scene):
    # Given
    parts = scene.part("node"), ProcessPart("ingress", lambda: spawn(["/bin/false"], {}), 0.3)
    # When / Then
    with (
        pytest.raises(StartFailed, match="ingress ended with exit code 1 while starting"),
        scene.running(*parts),
    ):
        pass


def test_supervisor_gives_up_waiting_when_a_signal_comes(scene):
    # Given
    with scene.running(scene.part("node")) as supervisor:
        in_background(os.kill, os.getpid(), signal.SIGINT)
        # When / Then
        with pytest.raises(Interrupted):
            supervisor.wait_until(lambda: False, timeout_s=10)


def test_supervisor_kills_at_once_when_a_second_signal_comes(scene):
    # Given a stop that would take long
    parts = scene.part("node", stubborn=True), scene.part("ingress", stubborn=True)
    with scene.running(*parts, stop_timeout_s=600.0) as supervisor:
        in_background(os.kill, os.getpid(), signal.SIGINT)
        supervisor.run()
        # When a second signal comes
        window_ends_s = time.monotonic() + REPEAT_WINDOW_S
        in_background(
            lambda: (
                eventually(lambda: time.monotonic() > window_ends_s),
                os.kill(os.getpid(), signal.SIGINT),
            )
        )
        started = time.monotonic()
        supervisor.stop()
    # Then
    assert_within(time.monotonic() - started, 5)
    assert len(scene.reports) == 2


def test_ready_pipe_hears_what_notify_ready_says_however_the_bytes_come(monkeypatch):
    # Given
    pipe = ReadyPipe()
    (fd,) = pipe.writer()
    monkeypatch.setenv(READY_VARIABLE, str(os.dup(fd)))
    try:
        # When
        os.write(fd, b'{"model": "m", "er')
        is_ready_early = pipe.poll()
        os.write(fd, b'ror": "no"}\n')
        is_ready_half = pipe.poll()
        notify_ready([{"model": "m", "error": "no such archive"}])
        # Then
        assert (is_ready_early, is_ready_half, pipe.poll()) == (False, False, True)
        assert [it["error"] for it in pipe.failures] == ["no", "no such archive"]
        assert READY_VARIABLE not in os.environ
    finally:
        pipe.close()


@pytest.mark.parametrize("number", ["", "none", "9999"])
def test_notify_ready_does_nothing_when_no_process_listens(monkeypatch, number):
    # Given
    monkeypatch.setenv(READY_VARIABLE, number)
    # When
    notify_ready()
    # Then
    assert READY_VARIABLE not in os.environ


def test_part_knows_how_it_was_started(monkeypatch):
    for how in Launch:
        monkeypatch.setenv(LAUNCH_VARIABLE, how)
        assert launch() is how
    # And without a parent that says so, it was started alone
    monkeypatch.delenv(LAUNCH_VARIABLE)
    assert launch() is Launch.ALONE
