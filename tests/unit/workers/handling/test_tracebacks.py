"""An author of a model sees where the model's own files failed, and nothing else."""

import importlib.util
import linecache
import sys
import time

import pytest

from tests.timing import assert_within
from workers.handling.runner import MAX_TEXT_CHARS, user_traceback


@pytest.fixture
def written(tmp_path):
    """Writes a module of the model; returns the exception that its `run()` or its import raises."""

    def write(source, name="handler.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        linecache.clearcache()
        spec = importlib.util.spec_from_file_location("handler", path)
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            module.run()
        except BaseException as error:  # a handler may raise anything
            return error
        raise AssertionError("nothing was raised")

    return write


def test_own_frames_are_named_relative_and_shown_with_their_source(tmp_path, written):
    # Given a folder that is known by a link, too
    source = "def load():\n    raise ValueError('no weights')\n\ndef run():\n    load()\n"
    error = written(source, "real/deep/handler.py")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    # When / Then
    assert user_traceback(error, tmp_path / "link") == (
        "Traceback (most recent call last):\n"
        '  File "deep/handler.py", line 5, in run\n'
        "    load()\n"
        '  File "deep/handler.py", line 2, in load\n'
        "    raise ValueError('no weights')\n"
        "ValueError: no weights"
    )


def test_frames_of_libraries_and_of_this_server_are_left_out(tmp_path, written):
    # Given
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "library.py").write_text(
        "def fail():\n    raise OSError('far')\n"
    )
    source = (
        "import json, sys\n"
        f"sys.path.insert(0, {str(tmp_path / 'site-packages')!r})\n"
        "import library\n"
        "from workers.handling.handlers import _import_handler\n"
        "def run():\n"
        "    try:\n"
        "        library.fail()\n"
        "    except OSError:\n"
        "        pass\n"
        "    _import_handler('nowhere')\n"
    )
    # When
    text = user_traceback(written(source), tmp_path)
    sys.path.remove(str(tmp_path / "site-packages"))
    # Then
    files = [line for line in text.splitlines() if line.startswith("  File")]
    assert files == ['  File "handler.py", line 10, in run']


SHOWN = {
    "of a library, without own frames": (
        "import json\ndef run():\n    json.loads('{')\n",
        "elsewhere",
        [
            '  File "json/decoder.py", line ',
            "json.decoder.JSONDecodeError: Expecting property name",
        ],
    ),
    "of the import": (
        "x = 1\ndef broken(:\n",
        ".",
        ['  File "handler.py", line 2\n    def broken(:\n', "SyntaxError: "],
    ),
    "called again and again": (
        "def run(n=9):\n    return run(n - 1) if n else 1 / 0\n",
        ".",
        ["[Previous line repeated ", "ZeroDivisionError"],
    ),
    "without a text": (
        "class Bad(Exception):\n    def __str__(self): raise RuntimeError\ndef run(): raise Bad\n",
        ".",
        ["handler.Bad: <"],
    ),
}


@pytest.mark.parametrize(("source", "folder", "parts"), SHOWN.values(), ids=SHOWN)
def test_place_and_text_of_the_exception_are_shown(source, folder, parts, tmp_path, written):
    # When
    text = user_traceback(written(source), tmp_path / folder)
    # Then
    assert [part for part in parts if part not in text] == []
    assert text.splitlines()[-1].startswith(parts[-1])
    assert str(tmp_path) not in text
    assert text.count('File "handler.py"') <= 4


def test_long_text_is_cut(tmp_path, written):
    text = user_traceback(written("def run():\n    raise ValueError('x' * 10**7)\n"), tmp_path)
    assert len(text) < MAX_TEXT_CHARS + 200
    assert text.endswith("x …")


def test_calls_are_kept_beside_a_text_of_many_lines(tmp_path, written):
    source = "def run():\n    raise ValueError('x\\n' * 10**6)\n"
    text = user_traceback(written(source), tmp_path)
    assert 'File "handler.py", line 2, in run\n    raise ValueError(' in text
    assert len(text) < MAX_TEXT_CHARS + 200


def test_runaway_recursion_is_short_and_quick(tmp_path, written):
    # Given
    limit = sys.getrecursionlimit()
    source = (
        "import sys\n"
        "def dive(n):\n"
        "    return dive(n + 1) if n % 2 else dip(n)\n"
        "def dip(n):\n"
        "    return dive(n + 1)\n"
        "def run():\n"
        "    sys.setrecursionlimit(200_000)\n"
        "    dive(0)\n"
    )
    try:
        error = written(source)
    finally:
        sys.setrecursionlimit(limit)
    # When
    started_s = time.thread_time()
    text = user_traceback(error, tmp_path)
    # Then
    assert_within(time.thread_time() - started_s, 2)
    assert len(text.splitlines()) <= 22
    assert "RecursionError: maximum recursion depth exceeded" in text.splitlines()[-1]


def test_causes_come_first_and_short(tmp_path, written):
    # Given
    source = (
        "def read():\n"
        "    raise FileNotFoundError('weights.pt')\n"
        "def run():\n"
        "    try:\n"
        "        read()\n"
        "    except FileNotFoundError as error:\n"
        "        raise RuntimeError('cannot load') from error\n"
    )
    # When
    lines = user_traceback(written(source), tmp_path).splitlines()
    # Then
    assert lines[1] == '  File "handler.py", line 5, in run'
    assert lines[5] == "FileNotFoundError: weights.pt"
    assert lines[7].startswith("The above exception was the direct cause")
    assert lines[-1] == "RuntimeError: cannot load"


def test_only_the_nearest_causes_are_shown(tmp_path, written):
    # Given
    source = (
        "def run(n=1000):\n"
        "    try:\n"
        "        raise KeyError(n)\n"
        "    except KeyError:\n"
        "        if n:\n"
        "            run(n - 1)\n"
        "        raise\n"
    )
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        error = written(source)
    finally:
        sys.setrecursionlimit(limit)
    # When
    text = user_traceback(error, tmp_path)
    # Then
    assert text.count("During handling of the above exception") == 2
    assert len(text.splitlines()) <= 34
