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
    used = {int(number) for number in re.findall(r"KEYS\[(\d+)\]", loader.source(verb))}
    # Then
    assert used == set(range(1, len(key_names(verb)) + 1))


@pytest.mark.parametrize("verb", sorted({*NUMBERED} - {"swap_model"}))
def test_keys_are_those_of_the_version_but_for_the_lease(verb):
    # Given
    names = key_names(verb)
    own = {"lease": "lease of a worker"} if "lease" in names else {}
    # When
    keys = ordered_keys(verb, VersionKeys.of(KEY), **own)
    # Then
    assert len(keys) == len(names)


def test_wrong_or_missing_name_is_an_error_that_names_the_script():
    keys = VersionKeys.of(KEY)
    with pytest.raises(ValueError, match=r"claim\.lua needs the key lease"):
        ordered_keys("claim", keys)
    with pytest.raises(ValueError, match=r"submit\.lua has no key lease"):
        ordered_keys("submit", keys, lease="lease")


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
