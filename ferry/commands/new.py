"""`ferry new`: writes a model to begin with, and its test, of the templates."""

import keyword
import re
import string
import sys
from pathlib import Path

import click

_TEMPLATES = Path(__file__).parents[1] / "templates"


@click.command()
@click.argument("name")
@click.option("--json", "kind", flag_value="json", default="json", help="Rows are JSON [default].")
@click.option("--text", "kind", flag_value="text", help="Rows are texts.")
@click.option("--image", "kind", flag_value="image", help="Rows are pictures.")
@click.option("--onnx", "kind", flag_value="onnx", help="Rows are arrays, for an ONNX file.")
def new(name: str, kind: str) -> None:
    """Write NAME.py, a model to begin with, and test_NAME.py."""
    taken = {*sys.stdlib_module_names, *keyword.kwlist, "ferry"}
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in taken:
        why = "use small letters, digits and '_', beginning with a letter, and no name of Python's."
        raise click.BadParameter(f"{name!r}: {why}", param_hint="'NAME'")
    title = "".join(part.capitalize() for part in name.split("_"))
    files: dict[str, bytes] = {}
    for file, template in (f"{name}.py", "model"), (f"test_{name}.py", "test"):
        text = (_TEMPLATES / f"{kind}_{template}.txt").read_text(encoding="utf-8")
        files[file] = string.Template(text).substitute(name=name, title=title).encode()
    if kind == "onnx":
        files[f"{name}.onnx"] = (_TEMPLATES / "relu.onnx").read_bytes()
    for file in files:
        if Path(file).exists():
            raise click.ClickException(f"{file} is there already, and nothing was written.")
    for file, content in files.items():
        Path(file).write_bytes(content)
    click.echo(f"Wrote {', '.join(files)}.\nNext: ferry serve {name}.py, and pytest test_{name}.py")
