"""What becomes of an output neither holds up nor ends what is done beside it."""

import os
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from batching.process.outputs import MOST_LINE_BYTES, Outlet, read_lines
from tests.support import eventually
from tests.timing import assert_within

LINE = b"x" * 99 + b"\n"
needs_full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no device that is always full"
)


class Pipe:
    """A pipe and its two ends."""

    def __init__(self):
        reader, writer = os.pipe()
        self.reader, self.writer = os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)

    def fill(self):
        """Writes until nothing more fits; returns how many bytes that were."""
        fd = self.writer.fileno()
        os.set_blocking(fd, False)
        try:
            return sum(iter(lambda: self.writer.write(b"\n" * 4096) or 0, 0))
        finally:
            os.set_blocking(fd, True)

    def read(self, count):
        """Returns so many bytes, which may not be there yet."""
        found = b""
        while len(found) < count:
            found += self.reader.read(count - len(found))
        return found


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    made.reader.close()
    made.writer.close()


@pytest.fixture
def lines(pipe):
    """Reads the lines of the pipe, beside those of another one; what was read."""
    found, other = [], Pipe()
    ended = [read_lines(one.reader, found.append) for one in (pipe, other)]
    yield found
    for one, end in zip((pipe, other), ended, strict=True):
        one.writer.close()
        end.result(5)


@needs_full_device
@pytest.mark.parametrize("has_reader", [False, True], ids=["reader has gone", "device is full"])
def test_output_that_takes_nothing_costs_the_lines_and_nothing_else(pipe, has_reader):
    # Given
    pipe.reader.close()
    with Path("/dev/full").open("wb", 0) as device:
        outlet = Outlet((device if has_reader else pipe.writer).fileno())
        # When
        for _ in range(5):
            outlet.write(LINE * 2)
        outlet.write_line(b"line")
        outlet.drain()
    # Then
    assert outlet.dropped == 11


def test_reader_that_does_not_read_is_waited_for_once_by_lines_of_children(pipe, caplog):
    # Given
    before = pipe.fill()
    outlet = Outlet(pipe.writer.fileno())
    # When far more is written than is kept
    started = time.monotonic()
    for _ in range(30_000):
        outlet.write(LINE)
    assert_within(time.monotonic() - started, 1.0)
    for _ in range(1_000):
        outlet.write_line(LINE[:-1])
    # Then
    assert_within(time.monotonic() - started, 1.5)
    kept = 31_000 - outlet.dropped
    assert 5_000 < kept < 20_000
    # When it is read after all
    assert pipe.read(before + kept * len(LINE)) == b"\n" * before + LINE * kept
    # Then the log says what is missing
    eventually(lambda: f"output dropped lines={31_000 - kept}" in caplog.text)


def test_lines_of_children_are_all_there_when_the_reader_is_slower_than_they_are(pipe):
    # Given
    outlet = Outlet(pipe.writer.fileno())
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(pipe.reader.read)  # to the end
        # When
        for _ in range(30_000):
            outlet.write_line(LINE[:-1])
        outlet.drain()
        pipe.writer.close()
        # Then
        assert reading.result(10) == LINE * 30_000
    assert outlet.dropped == 0


def test_descriptor_that_another_process_has_made_not_to_block_gets_all(pipe):
    # Given
    os.set_blocking(pipe.writer.fileno(), False)
    outlet = Outlet(pipe.writer.fileno())
    # When
    for _ in range(5_000):
        outlet.write(LINE)
    # Then
    assert pipe.read(5_000 * len(LINE)) == LINE * 5_000
    assert outlet.dropped == 0


PROGRAM = """
import sys
from batching.process.logs import configure_logging
configure_logging("info")
for number in range(20_000):
    print(number, "\\udcff")
"""


def test_last_lines_are_there_when_a_process_ends():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert done.stdout.decode() == "".join(f"{number} \\udcff\n" for number in range(20_000))
    assert done.stderr == b""


@needs_full_device
@pytest.mark.parametrize("target", ["/dev/full", "&-"])
def test_process_ends_well_whatever_becomes_of_its_outputs(target):
    # When it also warns, and has an unhandled error in a thread
    program = PROGRAM + "import warnings; warnings.warn('w')\n"
    words = ["sh", "-c", f'exec "$@" >{target} 2>{target}', "sh", sys.executable, "-c", program]
    # Then
    assert subprocess.run(words, check=False, timeout=30).returncode == 0


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\r\nc\rd\n"], [b"a", b"b", b"c", b"d"]),
        ([b"a\r", b"\nb\n"], [b"a", b"b"]),
        ([b"a\r", b"b\r"], [b"a", b"b"]),
        ([b"\n\n", b"\n"], [b"", b"", b""]),
        ([b"a", b"b", b"\nc"], [b"ab", b"c"]),
        ([b"\xff\xfe\n\x80"], [b"\xff\xfe", b"\x80"]),
        ([b"x" * (MOST_LINE_BYTES + 1), b"y\n"], [b"x" * MOST_LINE_BYTES, b"x", b"y"]),
    ],
)
def test_lines_end_however_they_were_written(chunks, expected, pipe, lines):
    # When each chunk is read by itself
    for chunk in chunks:
        pipe.writer.write(chunk)
        eventually(lambda: not select.select([pipe.reader], [], [], 0)[0])
    pipe.writer.close()
    # Then
    eventually(lambda: lines == expected)
