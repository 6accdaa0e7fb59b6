"""Python packages made on the fly, so that pip has something to install without a network."""

import zipfile

PACKAGE = "ferry_test_package"


def write_wheel(folder):
    """A wheel with one module, which pip finds with PIP_FIND_LINKS."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{PACKAGE}-1.0-py3-none-any.whl"
    info = f"{PACKAGE}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr(f"{PACKAGE}.py", "ANSWER = 42\n")
        bundle.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n"
        )
        bundle.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        bundle.writestr(f"{info}/RECORD", "")


def offline(folder):
    """The environment in which pip knows the wheels of this folder and nothing else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}
