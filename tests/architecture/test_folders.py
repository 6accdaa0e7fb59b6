"""The layout, executed: names are unique, and no import leads back up.

A *unit* of a folder is a sub-package of it, or a module that lies directly in it. Imports for type
checkers and inside functions count like any other.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("batching", "ingress", "workers", "ferry", "compat")
# TorchServe chose the names of the modules in compat/ts.
OWN_NAMES = ("batching", "ingress", "workers", "ferry")
# Imports nothing; workers run the models that are written with it.
SHARED = "ferry.modeling"
NOT_COUNTED = frozenset({"__init__", "__main__"})


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file, of the product's packages; a package goes by its own name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(root: Path) -> dict[str, set[str]]:
    """Module -> those of our own modules that it imports, anywhere in it."""
    known = modules(root)
    # Handlers import `ts`, which lies in compat.
    by_import = {name.removeprefix("compat."): name for name in known} | {n: n for n in known}
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(node):
                if target == SHARED and name.startswith("workers."):
                    continue
                if target in by_import and by_import[target] != name:
                    graph[name].add(by_import[target])
    return graph


def _targets(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def units(graph: dict[str, set[str]], folder: str) -> dict[str, set[str]]:
    """The imports between the units of one folder; '' is the folder of all packages."""
    prefix = f"{folder}." if folder else ""
    found: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            if name.startswith(prefix) and target.startswith(prefix):
                one, other = (it[len(prefix) :].partition(".")[0] for it in (name, target))
                if one != other:
                    found[one].add(other)
    return found


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Names of one cycle, in order; empty when there is none."""
    done: set[str] = set()

    def search(name: str, way: list[str]) -> list[str]:
        if name in way:
            return way[way.index(name) :]
        if name in done:
            return []
        for target in sorted(graph.get(name, ())):
            if found := search(target, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := search(name, []))), [])


def violations(root: Path) -> list[str]:
    """One line per broken rule."""
    known, graph = modules(root), imports(root)
    found = []
    if around := cycle({name: targets - _parents(name) for name, targets in graph.items()}):
        found.append(f"files import each other: {' -> '.join(around)}")
    folders = {""} | {name for name, path in known.items() if path.name == "__init__.py"}
    for folder in sorted(folders):
        if folder.startswith("compat"):
            continue
        if around := cycle(units(graph, folder)):
            found.append(f"units of {folder or 'the product'} import each other: {around}")
    stems: dict[str, list[str]] = defaultdict(list)
    for path in known.values():
        if path.stem not in NOT_COUNTED and path.relative_to(root).parts[0] in OWN_NAMES:
            stems[path.stem].append(path.relative_to(root).as_posix())
    found += [
        f"one name for several modules: {', '.join(paths)}"
        for stem, paths in stems.items()
        if len(paths) > 1
    ]
    return found


def _parents(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}


def test_layout_keeps_its_rules():
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"batching/a.py": "import batching.b", "batching/b.py": "import batching.a"},
            "files import each other",
        ),
        (
            {
                "batching/a.py": "from typing import TYPE_CHECKING\n"
                "if TYPE_CHECKING:\n    from batching.b import B",
                "batching/b.py": "def f():\n    from batching import a",
            },
            "files import each other",
        ),
        (
            {
                "batching/one/a.py": "import batching.two.b",
                "batching/two/b.py": "",
                "batching/two/c.py": "import batching.one.d",
                "batching/one/d.py": "",
            },
            "units of batching import each other",
        ),
        (
            {"ingress/a.py": "import batching.b", "batching/c.py": "import ingress.d"}
            | {"batching/b.py": "", "ingress/d.py": ""},
            "units of the product import each other",
        ),
        ({"ferry/one.py": "", "workers/one.py": ""}, "one name for several modules"),
    ],
)
def test_planted_violation_is_named(tmp_path, files, expected):
    # Given
    for place, source in files.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        for folder in path.relative_to(tmp_path).parents:
            if folder.parts:
                (tmp_path / folder / "__init__.py").touch()
    # When
    found = violations(tmp_path)
    # Then
    assert any(expected in line for line in found)
