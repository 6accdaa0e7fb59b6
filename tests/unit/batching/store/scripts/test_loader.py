"""The KEYS of a script are named once, in its head."""

import re
import subprocess
import sys

import pytest

from batching.store.keys import VersionKeys
from batching.store.scripts import loader
from batching.store.scripts.loader import key_names, ordered_keys
from tests.support import KEY

# Their KEYS repeat, as often as there are versions.
WITHOUT_NUMBERS = {"beat", "living", "report"}
NUMBERED = sorted(loader._SOURCES.keys() - WITHOUT_NUMBERS)


@pytest.mark.parametrize("verb", NUMBERED)
def test_head_names_each_key_that_the_script_uses(verb):
    # Given
    text = loader.source(verb)
    used = {int(number) for number in re.findall(r"KEYS\[(\d+)\]", text)}
    numbers = range(1, len(key_names(verb)) + 1)
    # Then
    assert used == {*numbers}
    assert all(
        re.search(rf"^--( KEYS)? .*\b{number} [a-z]", text, re.MULTILINE) for number in numbers
    )


@pytest.mark.parametrize("verb", sorted({*NUMBERED} - {"swap_model"}))
def test_keys_are_those_of_the_version_but_for_the_lease(verb):
    keys = ordered_keys(verb, VersionKeys.of(KEY), "lease of a worker")
    assert len(keys) == len(key_names(verb))
    assert {type(key) for key in keys} == {str}


def test_scripts_are_there_when_no_file_can_be_opened_any_more():
    # Given an ingress whose clients took every descriptor before its first request
    code = (
        "import resource; from batching.store.scripts.loader import source; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); print(source('submit'))"
    )
    # When
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    # Then
    assert done.stderr == ""
    assert "KEYS" in done.stdout
