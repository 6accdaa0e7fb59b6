"""Reload under load, at length: saves of every kind while clients ask, and not one is failed."""

import pytest

from tests.e2e.ferry_process import running
from tests.e2e.serving import (
    TAGGING,
    Load,
    Serving,
    save,
    save_and_hear,
    wait_for_lines,
)
from tests.support import eventually
from tests.timing import assert_within

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SAVES = 20
LONGEST_S = 5.0
BROKEN = {
    5: ("def predict(batch:\n", "tag.py:1: '(' was never closed"),
    11: ("import nosuchmodule\ndef predict(b): ...\n", 'File "tag.py", line 1, in <module>'),
    16: (
        "import ferry\nclass Tag(ferry.Model):\n    def load(self, device):\n"
        "        raise RuntimeError('no weights')\n    def predict(self, b): ...\n",
        'File "tag.py", line 4, in load',
    ),
}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "tag.py").write_text(TAGGING.format("first"))
    return tmp_path / "tag.py"


def test_twenty_saves_fail_no_request(path, record_property):
    # Given 8 clients with 200 requests/s in all
    seconds = []
    with running(Serving(path.parent, path, "--reload")) as serving:
        with Load(serving, "tag").going() as load:
            for number in range(1, SAVES + 1):
                # When a save is broken, then it is shown
                if number in BROKEN:
                    text, shown = BROKEN[number]
                    save(path, text)
                    wait_for_lines(serving, shown, "Still served: ")
                    continue
                # When it is good, then it answers soon
                by_rename = number % 3 == 0
                seconds.append(save_and_hear(load, path, str(number), by_rename=by_rename))
            assert eventually(lambda: len(serving.describe("tag")) == 1, 30)
        # Then
        assert load.failures == []
        assert load.answers > 1000
        assert not any(line.startswith("20") for line in serving.output().splitlines())  # no log
    record_property("answers", load.answers)
    record_property("slowest_s", round(max(seconds), 2))
    assert_within(max(seconds), LONGEST_S)


def test_hasty_saves_end_with_the_last_one(path):
    # Given a model that loads slowly
    slow = f"import time\ntime.sleep(1)\n{TAGGING}"
    with running(Serving(path.parent, path, "--reload")) as serving:
        with Load(serving, "tag", per_second=50).going() as load:
            # When it is saved again while it loads
            save(path, slow.format("given up"))
            assert eventually(lambda: len(serving.describe("tag")) == 2, 10)
            save(path, slow.format("soon over"))
            # Then the last one counts
            seconds = save_and_hear(load, path, "last")
            # When the file goes, and comes back as it was, and a module beside it changes
            path.rename(path.with_suffix(".away"))
            wait_for_lines(serving, "there is no file", "Still served: ")
            path.with_suffix(".away").rename(path)
            (path.parent / "helper.py").write_text("x = 1")
            wait_for_lines(serving, "serves after")
        # Then
        assert load.failures == []
        assert {b"given up", b"soon over"}.isdisjoint(load.heard)
    assert_within(seconds, LONGEST_S)


def test_models_that_come_and_go_are_served_and_not(path):
    # Given
    two = TAGGING.format("kept") + "\nimport ferry\n@ferry.model\ndef other(batch): return batch\n"
    path.write_text(two)
    with running(Serving(path.parent, path, "--reload")) as serving:
        assert serving.predict("other", b"1").json() == 1
        # When one is removed, then it is not served any more
        save(path, TAGGING.format("kept"))
        assert eventually(lambda: serving.predict("other", b"1").status_code == 404, 15)
        # When it is back, then it is
        save(path, two)
        assert eventually(lambda: serving.predict("other", b"1").status_code == 200, 15)
        assert serving.predict("tag", b"1").text == "kept"
