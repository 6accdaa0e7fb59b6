"""Python packages made on the fly, so that pip has something to install without a network."""

import zipfile

PACKAGE = "ferry_test_package"


def write_wheel(folder, name=PACKAGE, version="1.0", source="ANSWER = 42\n"):
    """A wheel with one module, which pip finds with PIP_FIND_LINKS."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr(f"{name}.py", source)
        bundle.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        bundle.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        bundle.writestr(f"{info}/RECORD", "")
    return path


def offline(folder):
    """The environment in which pip knows the wheels of this folder and nothing else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}
