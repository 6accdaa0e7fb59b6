"""Each mutant changes one place of the code into other code, and names a living test."""

import pytest

from tests.chaos.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mechanism)
def test_mutant_names_living_code_and_a_test(mutant: Mutant) -> None:
    # When
    code = (ROOT / mutant.path).read_text(encoding="utf-8")
    file, _, name = mutant.test.partition("::")
    tests = (ROOT / file).read_text(encoding="utf-8")
    # Then
    assert code.count(mutant.line) == 1
    if mutant.path.endswith(".py"):
        compile(code.replace(mutant.line, mutant.instead), mutant.path, "exec")
    assert f"def {name.partition('[')[0]}(" in tests
