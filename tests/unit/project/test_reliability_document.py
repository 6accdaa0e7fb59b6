"""The figures in docs/reliability.md are those that `make chaos` wrote."""

import json

from tests.chaos.promises import DOCUMENT, PROMISES, RESULTS, ROW, with_table


def test_reliability_document_has_the_figures_that_were_measured():
    # Given
    text = DOCUMENT.read_text(encoding="utf-8")
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))

    # Then
    assert with_table(text, measured) == text
    assert all(promise["kept"] for promise in measured["promises"])


def test_reliability_document_has_a_row_for_each_promise():
    rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert {name for _, names in rows for name in names.split(", ")} >= PROMISES.keys()
