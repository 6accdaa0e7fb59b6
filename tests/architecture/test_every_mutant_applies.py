"""The lines that `make chaos-mutants` switches off are there: the command itself is run seldom."""

import pytest

from tests.chaos.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mechanism)
def test_mutant_switches_off_one_line_and_names_a_test(mutant):
    # Given
    file, _, name = mutant.test.partition("::")
    # Then
    assert (ROOT / mutant.path).read_text(encoding="utf-8").count(mutant.line) == 1
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")
