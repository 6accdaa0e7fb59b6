"""Docstrings of functions say what the function does: they open with a verb."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("batching", "ingress", "workers", "ferry", "compat")
# What is true afterwards, or what is returned, rather than what is done.
NO_VERBS = ("The", "Whether", "What", "How")
MAX_SHARE = 1 / 20


def openings():
    """Place and first word of each function's docstring."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                if is_function and (text := ast.get_docstring(node)):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text.split()[0]


def test_few_docstrings_open_without_a_verb():
    # Given
    found = list(openings())
    # When
    without = [place for place, word in found if word in NO_VERBS]
    # Then
    assert len(found) > 500
    assert len(without) < MAX_SHARE * len(found), without
