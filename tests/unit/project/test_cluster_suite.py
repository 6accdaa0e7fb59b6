"""The tests that `make topology` leaves out on a cluster are there, under these names."""

from pathlib import Path

import pytest

from tests.topology.whole_suite import ON_ONE_SERVER

TESTS = Path(__file__).parents[2]
TEXTS = [
    f"{path.name} {path.read_text(encoding='utf-8')}"
    for folder in ("unit/batching/store", "e2e")
    for path in (TESTS / folder).rglob("test_*.py")
]


@pytest.mark.parametrize("words", ON_ONE_SERVER)
def test_what_a_cluster_leaves_out_is_a_test(words):
    assert any(f"def {words}(" in text or text.startswith(words) for text in TEXTS)
