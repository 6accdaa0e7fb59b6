"""The layering rules, executed: walks every import and names each violation.

`ingress → batching ← workers`: the sides meet only through the queue, so each can be replaced,
restarted or scaled without the other. A side that imported the other would also drag torch into the
ingress or flask into a worker.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Package -> which of our own packages it may import, itself aside.
MAY_IMPORT = {
    "batching": frozenset[str](),
    "ingress": frozenset({"batching"}),
    "workers": frozenset({"batching", "compat"}),
    "compat": frozenset[str](),
    "ferry": frozenset({"batching", "ingress", "workers", "ferry_client"}),
    # What is a client of the HTTP API; the server knows nothing of it.
    "ferry_client": frozenset[str](),
    "ferry_bulk": frozenset({"ferry_client"}),
    "ferry_moving": frozenset({"ferry_client"}),
}
# Side package -> its folder. They are distributions of their own.
SIDE_PACKAGES = {
    "ferry_client": "packages/client/ferry_client",
    "ferry_bulk": "packages/bulk/ferry_bulk",
    "ferry_moving": "packages/moving/ferry_moving",
}
# To a model in Python, this module is what `ts` is to a handler. It imports nothing of ours.
SHARED = "ferry.modeling"
SHARED_PLACE = "ferry/modeling.py"
SHARED_USERS = frozenset({"workers"})
# The package that compat/ts is to an old handler; it lives in compat, and workers run it.
TS = "ts"
TS_USERS = frozenset({"compat", "workers"})

# Third-party package -> the places (folder or file) that may import it. Nobody else may.
ONLY_IN = {
    "redis": ("batching/store/",),
    "rq": ("batching/store/", "workers/control_jobs.py"),
    "flask": ("ingress/", "packages/bulk/"),
    "httptools": ("ingress/",),
    "torch": ("workers/", "compat/"),
    "torchvision": ("workers/", "compat/"),
    "click": ("ferry/", "packages/moving/"),
    "rich": ("ferry/", "packages/moving/"),
}
# What lies directly in batching/ works without Redis; the store is built on it.
STORE = "batching.store"
# Code that arrives as bytes from a client or a queue must never be able to choose what is executed.
NOWHERE = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"})

# May be imported inside a function, because importing them costs seconds or they may be missing.
HEAVY = frozenset(
    {"torch", "torchvision", "PIL", "captum", "numpy", "transformers", "torchtext"}
    | {"aiohttp", "matplotlib"}
)
# May import inside functions what it likes: each of its commands loads one role only, and most
# servers start without a client of Redis in their supervisor.
LATE_IMPORTERS = (
    *(f"ferry/commands/{name}.py" for name in ("roles", "doctor", "container")),
    "ferry/main.py",
    "ferry/process_tree/start_checks.py",
    "ferry/process_tree/whole_server.py",
    "ferry/serving/session.py",
)


@dataclass(frozen=True, slots=True)
class Import:
    """One import as it is written."""

    module: str
    line: int
    level: int
    is_in_function: bool
    names: tuple[str, ...] = ()

    def reaches(self, module: str) -> bool:
        """Whether it loads this module or something inside it."""
        loaded = (self.module, *(f"{self.module}.{name}" for name in self.names))
        return any(f"{one}.".startswith(f"{module}.") for one in loaded)


def find_violations(root: Path) -> list[str]:
    """One line per violation, `file:line: rule`, sorted; empty when all is well."""
    found = []
    for package in MAY_IMPORT:
        for path in sorted((root / folder_of(package)).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            for imported in imports_of(path):
                found += [
                    f"{place}:{imported.line}: {rule}" for rule in broken_rules(place, imported)
                ]
    return sorted(found)


def imports_of(path: Path) -> Iterator[Import]:
    """Every import statement of a file, those under `if TYPE_CHECKING` and in functions too."""

    def walk(node: ast.AST, is_in_function: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, 0, is_in_function)
            elif isinstance(child, ast.ImportFrom):
                names = tuple(alias.name for alias in child.names)
                yield Import(child.module or "", child.lineno, child.level, is_in_function, names)
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, is_in_function or is_function)

    yield from walk(ast.parse(path.read_text(encoding="utf-8"), str(path)), False)


def broken_rules(place: str, imported: Import) -> Iterator[str]:
    """The rules that this import at this place breaks, in words."""
    if imported.level:
        yield "imports relatively; write the whole name"
        return
    top = imported.module.split(".")[0]
    package = next(name for name in MAY_IMPORT if place.startswith(f"{folder_of(name)}/"))
    is_shared = imported.module == SHARED and package in SHARED_USERS
    if top in MAY_IMPORT and top not in {package, *MAY_IMPORT[package]} and not is_shared:
        yield f"{package} must not import {top}"
    if top == TS and package not in TS_USERS:
        yield f"{package} must not import {TS}"
    if is_core(place) and imported.reaches(STORE):
        yield f"the core must not import {STORE}"
    if top in ONLY_IN and not place.startswith(ONLY_IN[top]):
        yield f"{top} may be imported only in {', '.join(ONLY_IN[top])}"
    if top in NOWHERE:
        yield f"{top} runs code that it reads and may be imported nowhere"
    if imported.is_in_function and top not in HEAVY and not place.startswith(LATE_IMPORTERS):
        yield f"imports {imported.module} inside a function; move it to the top"


def folder_of(package: str) -> str:
    """Where a package of ours lies."""
    return SIDE_PACKAGES.get(package, package)


def is_core(place: str) -> bool:
    """Whether the file lies directly in batching/."""
    return Path(place).parent == Path("batching")


def test_imports_keep_to_the_layers():
    # Given this repository / When
    violations = find_violations(ROOT)
    # Then
    assert not violations, "\n" + "\n".join(violations)


def test_what_models_import_is_cheap():
    # Given the module that every model's file imports, with nothing but Python's own modules
    tops = {one.module.partition(".")[0] for one in imports_of(ROOT / SHARED_PLACE)}
    # Then
    assert tops <= sys.stdlib_module_names


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_the_layering_test_looks_at_every_package(package):
    # Given a package that the rules name / When / Then: a renamed folder must not pass by absence
    assert list((ROOT / folder_of(package)).rglob("*.py"))


@pytest.mark.parametrize(
    ("place", "source", "expected"),
    [
        (
            "ingress/predictions/prediction.py",
            "import workers.handling.runner",
            "ingress must not import workers",
        ),
        ("workers/node/node.py", "from ingress import server", "workers must not import ingress"),
        (
            "batching/batcher.py",
            "from workers.handling.runner import R",
            "batching must not import workers",
        ),
        ("batching/policy.py", "import ingress", "batching must not import ingress"),
        ("workers/node/node.py", "import ferry.commands.roles", "workers must not import ferry"),
        ("compat/ts/context.py", "import batching", "compat must not import batching"),
        ("batching/policy.py", "import ferry_client", "batching must not import ferry_client"),
        ("ingress/server.py", "import ferry_client", "ingress must not import ferry_client"),
        ("workers/node/node.py", "import ferry_client", "workers must not import ferry_client"),
        ("compat/ts/context.py", "import ferry_client", "compat must not import ferry_client"),
        *(
            (
                f"packages/client/ferry_client/{name}.py",
                f"import {server}",
                f"ferry_client must not import {server}",
            )
            for name, server in zip(
                ("flows", "jobs", "calls", "client", "errors"),
                ("batching", "ingress", "workers", "ferry", "ts"),
                strict=True,
            )
        ),
        *(
            (
                f"packages/{place}/{package}/main.py",
                f"import {server}",
                f"{package} must not import {server}",
            )
            for place, package in (("bulk", "ferry_bulk"), ("moving", "ferry_moving"))
            for server in ("batching", "ingress", "workers", "ferry", "ts")
        ),
        *(
            (f"{package}/main.py", "import ferry_bulk", f"{package} must not import ferry_bulk")
            for package in ("batching", "ingress", "workers", "compat", "ferry")
        ),
        ("ferry/main.py", "import ferry_moving", "ferry must not import ferry_moving"),
        ("ingress/rest/app.py", "from ts.context import Context", "ingress must not import ts"),
        ("batching/policy.py", "from batching.store.keys import f", "core must not import"),
        ("batching/policy.py", "import batching.store.keys", "core must not import"),
        ("batching/policy.py", "from batching import store", "core must not import"),
        ("ingress/rest/app.py", "import redis.asyncio", "redis may be imported only in"),
        ("batching/registry.py", "from redis import Redis", "redis may be imported only in"),
        ("workers/handling/worker.py", "import rq", "rq may be imported only in"),
        ("ferry/commands/status.py", "import flask", "flask may be imported only in"),
        ("batching/spec.py", "import torch", "torch may be imported only in"),
        (
            "ingress/predictions/prediction.py",
            "def f():\n    import torch",
            "torch may be imported only in",
        ),
        ("batching/wire.py", "import pickle", "pickle runs code that it reads"),
        ("ingress/rest/app.py", "from .front import InferenceRouter", "imports relatively"),
        ("ingress/rest/app.py", "from . import front", "imports relatively"),
        (
            "workers/node/node.py",
            "def f():\n    import json",
            "imports json inside a function; move it to the top",
        ),
        (
            "ingress/rest/app.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from redis import Redis",
            "redis may be imported only in",
        ),
    ],
)
def test_a_planted_violation_is_named(tmp_path, place, source, expected):
    # Given
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(source + "\n", encoding="utf-8")
    # When
    violations = find_violations(tmp_path)
    # Then
    assert len(violations) == 1
    assert violations[0].startswith(f"{place}:")
    assert expected in violations[0]


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("ingress.server", {"torch", "workers", "ferry"}),
        # Doors know the service; the service knows no transport.
        (
            "ingress.predictions.prediction_service",
            {"flask", "httptools", "ingress.http1", "ingress.torchserve"},
        ),
        ("workers.node.node", {"torch", "flask", "httptools", "ingress", "ferry"}),
        # Each command loads what it needs: `ferry --help` is there at once.
        ("ferry.main", {"httpx", "rich", "batching", "ingress", "workers", "ferry.commands"}),
        # A user's program loads the client, and nothing of the server.
        ("ferry", {"torch", "httpx", "click", "batching", "ferry_client", "asyncio"}),
        (
            "ferry_client",
            {"torch", "flask", "redis", "batching", "ingress", "workers", "ferry"},
        ),
        ("ferry_bulk.main", {"torch", "redis", "batching", "ingress", "workers", "ferry"}),
        ("ferry_moving.shadow", {"torch", "batching", "ingress", "workers", "ferry"}),
    ],
)
def test_a_process_does_not_load_what_belongs_to_another(module, unwanted):
    # Given a fresh interpreter
    script = f"import sys, {module}; print(*sorted(sys.modules))"
    # When
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # Then
    assert not unwanted & set(done.stdout.split())
