"""Builds the distributions into dist/ and tries each wheel on every Python that is here.

    make release [RELEASE_PYTHONS="python3.12 /usr/local/bin/python3.14"]

The tests of the wheels install them into empty environments. There `ferry serve` runs a Python file
and `ferry up` its archive, the client asks a server, `ferry-bulk` runs a file of inputs, and `ferry
shadow` compares two servers. No torch is installed for that: one test, of a handler that needs it,
borrows this environment's, and so runs on this environment's Python only.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PROJECTS = (".", "packages/client", "packages/bulk", "packages/moving")
TESTS = ("tests/e2e/test_e2e_wheel.py", *map(str, sorted(ROOT.glob("packages/*/tests/*_wheel.py"))))
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
CLASSIFIER = "Programming Language :: Python :: 3."


def main(pythons: Sequence[str]) -> int:
    """Builds and tries; returns 0 if all is well on at least one Python."""
    shutil.rmtree(DIST, ignore_errors=True)
    for project in PROJECTS:
        # The wheel is built from the source distribution, so that one is tried as well.
        run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT / project))
    files = sorted(str(path) for path in DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    results = {python: is_good(python) for python in pythons or found_pythons()}
    print(*files, sep="\n")
    for python, good in results.items():
        print(f"{'good' if good else 'FAILED'}: {version_of(python)}, {python}")
    return 0 if results and all(results.values()) else 1


def run(*words: str) -> None:
    """Runs this; ends with its exit code if it fails."""
    if code := subprocess.run(words, check=False).returncode:
        sys.exit(code)


def is_good(python: str) -> bool:
    """Returns whether the tests of the wheels pass on this Python."""
    print(f"--- {version_of(python)}, {python}", flush=True)
    words = [sys.executable, "-m", "pytest", "-q", *TESTS]
    environment = {**os.environ, "RELEASE_WHEELS": str(DIST), "RELEASE_PYTHON": python}
    return subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode == 0


def found_pythons() -> Iterator[str]:
    """Yields one interpreter of each version that pyproject.toml names; says which are missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["classifiers"]:
        if not line.startswith(CLASSIFIER):
            continue
        name = f"python3.{line.removeprefix(CLASSIFIER)}"
        places = [sys.executable, shutil.which(name), *sorted(PYENV.glob(f"*/bin/{name}"))]
        wanted = name.replace("python", "Python ")
        working = (str(it) for it in places if it and version_of(str(it)).startswith(f"{wanted}."))
        if python := next(working, ""):
            yield python
        else:
            print(f"{wanted} is not here", flush=True)


def version_of(python: str) -> str:
    """Returns what it calls itself, as `Python 3.12.1`; empty: it does not run."""
    try:
        done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
