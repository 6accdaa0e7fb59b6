"""docs/reference/ says what the code says of itself."""

import pytest
from ts.context import Context

from batching.settings.settings import SETTINGS
from ferry.main import COMMANDS
from ingress.torchserve.routes import ROUTES
from scripts.docstrings import described, parts_of
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


def test_commands_and_operations_are_all_there():
    commands = text_of("command-line.md")
    assert [name for name in COMMANDS if f"\n## ferry {name}" not in commands] == []
    operations = [it for it in ROUTES if it.operation]
    http = text_of("http.md")
    assert [it.path for it in operations if f" {it.path}\n" not in http] == []


def test_each_public_name_of_the_context_is_explained():
    lines = text_of("context.md").splitlines()
    public = {name for name in dir(Context("", "", None, 1, None, "")) if name[0] != "_"}
    explained = {name for name in public if any(line.startswith(f"- `{name}") for line in lines)}
    assert public - explained == SERVERS_OWN
    assert [line for line in lines if line.startswith("- `") and "`: " not in line] == []


class Example:
    """Does one thing.

    Args:
        one: a number
            of the usual kind.

    Raises:
        ValueError: it is none.
    """

    def __init__(self, one: int = 1) -> None:
        self.one = one

    async def act(self, *, twice: bool = False) -> str:
        """Acts.

        Returns:
            What became of it.
        """
        raise NotImplementedError

    def _hidden(self) -> None: ...


def test_docstrings_become_lists():
    assert parts_of(Example.__doc__.replace("\n    ", "\n").rstrip()) == (
        "Does one thing.",
        ["`one`: a number of the usual kind.", "raises `ValueError`: it is none."],
    )
    example = described(Example)
    assert example.signature == "Example(one: int = 1)"
    assert [one.name for one in example.members] == ["one", "act"]
    assert list(example.members[1].as_item()) == [
        "- `async act(*, twice: bool = False) -> str`: Acts.",
        "    - returns: What became of it.",
    ]
