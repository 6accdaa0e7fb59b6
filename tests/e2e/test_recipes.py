"""The pages of docs/recipes/ as a reader pastes them; one server has the models of all of them."""

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.e2e.clients import needs_curl
from tests.e2e.test_readme import ANY_SHELL, FILE, Reader, blocks
from tests.e2e.tiny_models import put_in_cache, put_resnet

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/recipes/*.md"))
ANSWER = re.compile(r"^<!-- answer -->\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytest.importorskip("onnxscript", reason="a recipe exports to ONNX")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def blocks_of(page: str, kind: str) -> list[str]:
    return [block.text.strip() for block in blocks(page) if kind in block.kinds]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Has saved the files of all pages, run their commands, and serves all of their models.

    Tiny models are in the places of those that the pages download.
    """
    folder = tmp_path_factory.mktemp("recipes")
    person = Reader(folder)
    person.environment |= {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    put_resnet(folder / "torch")
    targets = []
    with ThreadPoolExecutor() as pool:
        making = pool.submit(put_in_cache, folder / "cache", "sentiment", "story", "clip")
        for page in PAGES:
            for name, content in FILE.findall((ROOT / page).read_text(encoding="utf-8")):
                (folder / name).write_text(content)
            for command in blocks_of(page, "run"):
                person.run(command)
            [serve] = blocks_of(page, "serve")
            targets.append(serve.removeprefix("ferry serve "))
        making.result()
    try:
        person.serve(f"ferry serve {' '.join(targets)}")
        yield person
        person.stop()
    finally:
        person.kill()


@needs_curl
@pytest.mark.parametrize("page", PAGES)
def test_recipe_answers_as_it_says(page, reader):
    # Given
    [ask] = blocks_of(page, "ask")
    [expected] = ANSWER.findall((ROOT / page).read_text(encoding="utf-8"))
    if not torch.cuda.is_available():
        expected = expected.replace("cuda:0", "cpu")
    # When
    answer = reader.run(ask).replace("\r\n", "\n")
    # Then
    pattern = ".*".join(map(re.escape, expected.strip().split("…")))
    assert re.fullmatch(pattern, answer.strip(), re.DOTALL), answer


@needs_curl
def test_embeddings_have_512_numbers_and_the_length_1(reader):
    [ask] = blocks_of("docs/recipes/embeddings.md", "ask")
    for numbers in json.loads(reader.run(ask)).values():
        assert len(numbers) == 512
        assert math.hypot(*numbers) == pytest.approx(1)


@pytest.mark.parametrize("page", PAGES)
def test_recipe_marks_every_block(page):
    # Given
    text = (ROOT / page).read_text(encoding="utf-8")
    marked = len(blocks(page)) + len(FILE.findall(text)) + len(ANSWER.findall(text))
    # When / Then: a block that is never run rots
    assert len(ANY_SHELL.findall(text)) == len(blocks(page))
    assert marked == len(re.findall(r"^```\w+$", text, re.MULTILINE))
