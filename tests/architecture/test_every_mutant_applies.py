"""Each mutant of `make chaos-mutants`, which is run seldom, changes living code."""

import pytest

from tests.chaos.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mechanism)
def test_mutant_switches_off_one_line_and_names_a_test(mutant):
    code = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert code.count(mutant.line) == 1
    if mutant.path.endswith(".py"):
        compile(code.replace(mutant.line, mutant.instead), mutant.path, "exec")
    file, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")
