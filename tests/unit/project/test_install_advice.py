"""No text advises to install what no registry has: none has the packages yet."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("batching", "compat", "deploy", "docs", "examples", "ferry", "ingress", "workers")
# `pip install torchferry`, with or without extras, quotes and options.
ADVICE = re.compile(r"pip3? install[^\n`]*?\btorchferry\b(?!-)(?!/)")


def advising(text):
    return [match[0] for match in ADVICE.finditer(text)]


def test_texts_name_what_can_be_installed():
    files = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()]
    files += [ROOT / "README.md", *ROOT.glob("docker-compose*.yml")]
    texts = {path: path.read_bytes().decode(errors="ignore") for path in files}
    assert len(texts) > 300
    assert {str(path): found for path, text in texts.items() if (found := advising(text))} == {}


def test_such_advice_is_found():
    assert advising("run `pip install torchferry[torch]`, or")
    assert advising("pip install --quiet 'torchferry[bench]'")
    assert not advising("/opt/torchferry/bin/pip install '.[torch]'")
