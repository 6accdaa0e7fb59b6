"""docs/reference/ says what the code says of itself."""

import pytest
from ts.context import Context

from batching.settings.settings import SETTINGS
from scripts.references import REFERENCE, SERVERS_OWN, written

PAGES = written()


def text_of(name):
    return (REFERENCE / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_reference_is_current(name):
    assert text_of(name) == PAGES[name], "run: python -m scripts.references"


def test_settings_are_all_there_with_their_meaning():
    rows = [line.split(" | ") for line in text_of("settings.md").splitlines() if "| `" in line]
    assert sorted(row[0].split("`")[1] for row in rows) == sorted(it.name for it in SETTINGS)
    assert [row for row in rows if len(row) != 5 or len(row[-1]) < 10] == []


def test_each_public_name_of_the_context_is_explained():
    lines = text_of("context.md").splitlines()
    public = {name for name in dir(Context("", "", None, 1, None, "")) if name[0] != "_"}
    explained = {name for name in public if any(line.startswith(f"- `{name}") for line in lines)}
    assert public - explained == SERVERS_OWN
    assert [line for line in lines if line.startswith("- `") and "`: " not in line] == []
