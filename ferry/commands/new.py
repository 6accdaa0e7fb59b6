"""`ferry new`: writes a model to begin with, and its test."""

import base64
import keyword
import re
import sys
from pathlib import Path

import click

_MODEL = '''"""Serve it: ferry serve {name}.py."""

{imports}


class {title}(ferry.Model):
    """{summary}"""

    name = "{name}"
    batch_size = 32

    def load(self, device: str) -> None:
        {load}

    def predict(self, batch: list[{takes}]) -> list[{gives}]:
        return {answers}
'''
_TEST = """{test_imports}

from {name} import {title}


def test_each_row_is_answered():
    model = ferry.local({title})
    assert model({rows}) == {expected}
"""
_DEFAULTS = {
    "imports": "import ferry",
    "load": '"""Loads the weights, once per worker; `device` is what torch calls it."""',
    "test_imports": "import ferry",
}
# Skips the test where the package is missing.
_IF_THERE = 'import ferry\nimport pytest\n\npytest.importorskip("{}")'
_KINDS = {
    "json": {
        "summary": "Adds the numbers of each row.",
        "takes": "list[float]",
        "gives": "float",
        "answers": "[sum(numbers) for numbers in batch]",
        "rows": "[[1, 2], [3]]",
        "expected": "[3.0, 3.0]",
    },
    "text": {
        "summary": "Counts the words of each text.",
        "takes": "str",
        "gives": "dict",
        "answers": '[{"words": len(text.split())} for text in batch]',
        "rows": '["one two", ""]',
        "expected": '[{"words": 2}, {"words": 0}]',
    },
    "image": {
        "summary": "Says how large each picture is.",
        "takes": "Image",
        "gives": "dict",
        "answers": '[{"width": image.width, "height": image.height} for image in batch]',
        "rows": '[Image.new("RGB", (4, 3))]',
        "expected": '[{"width": 4, "height": 3}]',
        "imports": "import ferry\nfrom PIL.Image import Image",
        "test_imports": _IF_THERE.format("PIL") + "\n\nfrom PIL import Image",
    },
    "onnx": {
        "summary": "Runs the ONNX file of the same name: put your own in its place.",
        "takes": "np.ndarray",
        "gives": "np.ndarray",
        "answers": "self.session.run(None, {self.input: np.stack(batch).astype(np.float32)})[0]",
        "rows": "[[1, -2, 3, -4]]",
        "expected": "[[1.0, 0.0, 3.0, 0.0]]",
        "imports": "from pathlib import Path\n\n"
        "import ferry\nimport numpy as np\nimport onnxruntime",
        "test_imports": _IF_THERE.format("onnxruntime"),
        "load": "providers = onnxruntime.get_available_providers()\n"
        '        path = Path(__file__).with_suffix(".onnx")\n'
        "        self.session = onnxruntime.InferenceSession(path, providers=providers)\n"
        "        self.input = self.session.get_inputs()[0].name",
    },
}
# Relu of float32 [batch, 4].
_ONNX = (
    "CAgSADpXChUKBWlucHV0EgZvdXRwdXQiBFJlbHUSAWdaHAoFaW5wdXQSEwoRCAESDQoHEgViYXRjaAoCCARiHQoGb3V0"
    "cHV0EhMKEQgBEg0KBxIFYmF0Y2gKAggEQgQKABAN"
)


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
    blanks = {"name": name, "title": title, **_DEFAULTS, **_KINDS[kind]}
    files = {
        f"{name}.py": _MODEL.format(**blanks).encode(),
        f"test_{name}.py": _TEST.format(**blanks).encode(),
    }
    if kind == "onnx":
        files[f"{name}.onnx"] = base64.b64decode(_ONNX)
    for file in files:
        if Path(file).exists():
            raise click.ClickException(f"{file} is there already, and nothing was written.")
    for file, content in files.items():
        Path(file).write_bytes(content)
    click.echo(f"Wrote {', '.join(files)}.\nNext: ferry serve {name}.py, and pytest test_{name}.py")
