"""`ferry new`: writes a model to begin with, and its test."""

import base64
import keyword
import re
import sys
from pathlib import Path

import click

_MODEL = '''"""Serve it: ferry serve NAME.py."""

IMPORTS


class TITLE(ferry.Model):
    """SUMMARY"""

    name = "NAME"
    batch_size = 32

    def load(self, device: str) -> None:
        LOAD

    def predict(self, batch: list[TAKES]) -> list[GIVES]:
        ANSWER
'''
_TEST = """IMPORTS

from NAME import TITLE


def test_each_row_is_answered():
    model = ferry.local(TITLE)
    assert model(ROWS) == ANSWERS
"""
_USUAL = {
    "IMPORTS": "import ferry",
    "LOAD": '"""Loads the weights, once per worker; `device` is what torch calls it."""',
}
_IF_THERE = 'import ferry\nimport pytest\n\npytest.importorskip("{}")'
# What stands in the model's file and in its test, by the kind of rows.
_KINDS = {
    "json": (
        {
            "SUMMARY": "Adds the numbers of each row.",
            "TAKES": "list[float]",
            "GIVES": "float",
            "ANSWER": "return [sum(numbers) for numbers in batch]",
        },
        {"ROWS": "[[1, 2], [3]]", "ANSWERS": "[3.0, 3.0]"},
    ),
    "text": (
        {
            "SUMMARY": "Counts the words of each text.",
            "TAKES": "str",
            "GIVES": "dict",
            "ANSWER": 'return [{"words": len(text.split())} for text in batch]',
        },
        {"ROWS": '["one two", ""]', "ANSWERS": '[{"words": 2}, {"words": 0}]'},
    ),
    "image": (
        {
            "IMPORTS": "import ferry\nfrom PIL.Image import Image",
            "SUMMARY": "Says how large each picture is.",
            "TAKES": "Image",
            "GIVES": "dict",
            "ANSWER": 'return [{"width": one.width, "height": one.height} for one in batch]',
        },
        {
            "IMPORTS": f"{_IF_THERE.format('PIL')}\nfrom PIL import Image",
            "ROWS": '[Image.new("RGB", (4, 3))]',
            "ANSWERS": '[{"width": 4, "height": 3}]',
        },
    ),
    "onnx": (
        {
            "IMPORTS": "from pathlib import Path\n\n"
            "import ferry\nimport numpy as np\nimport onnxruntime",
            "SUMMARY": "Runs NAME.onnx: put your own file in its place.",
            "LOAD": "providers = onnxruntime.get_available_providers()\n"
            '        path = Path(__file__).with_name("NAME.onnx")\n'
            "        self.session = onnxruntime.InferenceSession(path, providers=providers)",
            "TAKES": "np.ndarray",
            "GIVES": "np.ndarray",
            "ANSWER": "feeds = {self.session.get_inputs()[0].name: "
            "np.stack(batch).astype(np.float32)}\n"
            "        return self.session.run(None, feeds)[0]",
        },
        {
            "IMPORTS": _IF_THERE.format("onnxruntime"),
            "ROWS": "[[1, -2, 3, -4]]",
            "ANSWERS": "[[1.0, 0.0, 3.0, 0.0]]",
        },
    ),
}
# Relu of float32 [batch, 4].
_ONNX = (
    "CAgSADpXChUKBWlucHV0EgZvdXRwdXQiBFJlbHUSAWdaHAoFaW5wdXQSEwoRCAESDQoHEgViYXRjaAoCCARiHQoGb3V0"
    "cHV0EhMKEQgBEg0KBxIFYmF0Y2gKAggEQgQKABAN"
)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@click.command()
@click.argument("name")
@click.option("--json", "kind", flag_value="json", default="json", help="Rows are JSON [default].")
@click.option("--text", "kind", flag_value="text", help="Rows are texts.")
@click.option("--image", "kind", flag_value="image", help="Rows are pictures.")
@click.option("--onnx", "kind", flag_value="onnx", help="Rows are arrays, for an ONNX file.")
def new(name: str, kind: str) -> None:
    """Write NAME.py, a model to begin with, and test_NAME.py."""
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r}: use small letters, digits and '_', beginning with a letter.",
            param_hint="'NAME'",
        )
    if name in {*sys.stdlib_module_names, *keyword.kwlist, "ferry"}:
        raise click.BadParameter(f"{name!r} is a name of Python's.", param_hint="'NAME'")
    model, test = _KINDS[kind]
    files = {
        f"{name}.py": _filled(_MODEL, model, name).encode(),
        f"test_{name}.py": _filled(_TEST, test, name).encode(),
    }
    if kind == "onnx":
        files[f"{name}.onnx"] = base64.b64decode(_ONNX)
    if there := [file for file in files if Path(file).exists()]:
        raise click.ClickException(f"{there[0]} is there already, and nothing was written.")
    for file, content in files.items():
        with Path(file).open("xb") as stream:
            stream.write(content)
    click.echo(f"Wrote {', '.join(files)}.\nNext: ferry serve {name}.py, and pytest test_{name}.py")


def _filled(template: str, words: dict[str, str], name: str) -> str:
    title = "".join(part.capitalize() for part in name.split("_"))
    for word, text in {**_USUAL, **words, "TITLE": title, "NAME": name}.items():
        template = template.replace(word, text)
    return template
