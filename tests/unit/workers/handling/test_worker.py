"""What a worker reports of its model, whatever the model's code made of it."""

import pytest

from workers.handling.worker import MAX_INTERFACE_CHARS, reportable


def test_interface_is_reported_as_it_is():
    # Given
    interface = {"summary": "Doubles.", "input": {"kind": "json"}}

    # When / Then
    assert reportable(interface) == interface


RECURSIVE = {}
RECURSIVE["self"] = RECURSIVE
UNUSABLE = {
    "too large": {"summary": "x" * MAX_INTERFACE_CHARS},
    "not JSON": {"example": b"bytes"},
    "not a number of JSON": {"example": float("nan")},
    "recursive": RECURSIVE,
}


@pytest.mark.parametrize("interface", UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_interface_is_left_out_and_logged(interface, caplog):
    # When / Then
    assert reportable(interface) == {}
    assert "interface is not shown" in caplog.text
