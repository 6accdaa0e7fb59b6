"""The page in a real Chromium: what a person sees, tries and watches."""

import contextlib
import json
import shlex
import subprocess
import threading

import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.pictures import CHROMIUM, FLAGS
from tests.support import eventually

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"

SENTIMENT = f'''
import time
import ferry

class Sentiment(ferry.Model):
    """Says whether a review is positive. {HOSTILE}"""

    warm_up = ["A wonderful film."]

    def predict(self, texts: list[str]) -> list[dict]:
        time.sleep(0.01)
        return [{{"label": "POSITIVE", "letters": len(text), "big": 2**53 + 1}} for text in texts]
'''
PRICE = f"""
import ferry
import msgspec

class House(msgspec.Struct):
    rooms: int
    note: str

class Price(ferry.Model):
    warm_up = [House(3, {HOSTILE!r})]

    def predict(self, houses: list[House]) -> list:
        return [
            ferry.BadInput({HOSTILE!r}) if house.rooms > 9 else {{"price": 100 * house.rooms}}
            for house in houses
        ]
"""
ROTATED = """
import ferry
from PIL.Image import Image

class Rotated(ferry.Model):
    def predict(self, images: list[Image]) -> list[Image]:
        return [image.rotate(90, expand=True) for image in images]
"""
LABELLED = """
import ferry
import msgspec
from PIL.Image import Image

class Job(msgspec.Struct):
    picture: Image
    words: int = 5

class Labelled(ferry.Model):
    def predict(self, jobs: list[Job]) -> list[str]:
        return [f"{job.words} words of {job.picture.size[0]} pixels" for job in jobs]
"""
MODELS = {
    "sentiment": ("Sentiment", SENTIMENT),
    "price": ("Price", PRICE),
    "rotated": ("Rotated", ROTATED),
    "labelled": ("Labelled", LABELLED),
}

SETTINGS = "{minWorkers: 1, maxWorkers: 1, batchSize: 16, maxBatchDelay: 10, batchPolicy: adaptive}"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]


@pytest.fixture(scope="module")
def models(server, innocent):
    """The server with Python models, and a handler of TorchServe's."""
    for name, (target, source) in MODELS.items():
        # An archive may be a folder.
        folder = server.store / name
        (folder / "MAR-INF").mkdir(parents=True)
        (folder / f"{name}.py").write_text(source)
        (folder / "model-config.yaml").write_text(SETTINGS)
        model = {"modelName": name, "modelVersion": "1.0", "handler": "python_model"}
        model |= {"target": f"{name}.py:{target}", "configFile": "model-config.yaml"}
        manifest = {"runtime": "python", "model": model}
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
        server.register(name)
    yield server
    for name in MODELS:
        server.manage("DELETE", f"models/{name}")


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "wide picture.png"
    Image.new("RGB", (30, 20), "red").save(path)
    return path


class Page:
    """The page in a tab of its own; what goes wrong in it is kept."""

    def __init__(self, tab, url):
        self.tab, self.problems, self.hosts = tab, [], set()
        tab.on("pageerror", lambda error: self.problems.append(str(error)))
        tab.on("console", self._note)
        tab.on("request", lambda asked: self.hosts.add(asked.url.partition("?")[0].split("/")[2]))
        self.answer = tab.goto(url)

    def _note(self, message):
        # A refused prediction is an error of the console's, too.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def card(self, name):
        """The model's card, open."""
        found = self.tab.locator(".model", has=self.tab.get_by_role("heading", name=name))
        found.wait_for()
        if not found.evaluate("card => card.open"):
            found.locator("summary").click()
        return found

    def send(self, card):
        """Sends what the form holds; returns the line about the answer."""
        card.get_by_role("button", name="Send", exact=True).click()
        line = card.locator("output")
        eventually(lambda: " in " in line.inner_text(), 20)
        return line.inner_text()

    def answer_text(self, card):
        return card.locator(".answer pre").inner_text()


@pytest.fixture
def open_page(chromium, models):
    """Opens the page, or another path, as this kind of browser; at the end nothing was wrong."""
    with contextlib.ExitStack() as cleanup:
        opened = []

        def open_one(path="/", **options):
            context = chromium.new_context(**options)
            cleanup.callback(context.close)
            opened.append(Page(context.new_page(), models.inference + path))
            return opened[-1]

        yield open_one
        for page in opened:
            assert page.problems == []
            assert page.hosts <= {f"127.0.0.1:{models.port}", ""}


def run_command(card, folder):
    """What the command line on the card answers, in a shell whose folder has the file."""
    words = shlex.split(card.locator(".curl code").inner_text())
    words = [*words, "--silent", "--show-error", "--noproxy", "*"]
    return subprocess.run(words, cwd=folder, capture_output=True, timeout=30, check=True).stdout


def test_text_is_tried(open_page, tmp_path):
    # Given
    page = open_page()
    card = page.card("sentiment")
    assert "str → dict" in card.inner_text()
    typed = card.get_by_label("Text", exact=True).last
    assert typed.input_value() == "A wonderful film."
    # When
    typed.fill("it's @ wonderful $film")
    told = page.send(card)
    # Then
    assert told.startswith("200 OK in ")
    assert told.endswith(" ms")
    assert page.answer_text(card).splitlines() == [
        "{",
        '  "label": "POSITIVE",',
        '  "letters": 22,',
        '  "big": 9007199254740993',
        "}",
    ]
    assert b'"letters":22' in run_command(card, tmp_path)


def test_picture_is_tried(open_page, picture):
    # Given
    page = open_page()
    card = page.card("rotated")
    card.get_by_label("File", exact=True).last.set_input_files(picture)
    eventually(card.get_by_alt_text("The chosen image").is_visible)
    # When
    assert page.send(card).startswith("200 OK")
    # Then
    shown = card.get_by_alt_text("The answer")
    eventually(lambda: shown.evaluate("image => image.naturalHeight") == 30)
    assert shown.evaluate("image => image.naturalWidth") == 20
    assert run_command(card, picture.parent).startswith(b"\x89PNG")


def test_form_with_a_file_is_tried(open_page, picture):
    # Given
    page = open_page()
    card = page.card("labelled")
    card.get_by_label("picture").set_input_files(picture)
    card.get_by_label("words").fill("7")
    # When / Then
    assert page.send(card).startswith("200 OK")
    assert page.answer_text(card) == "7 words of 30 pixels"
    assert run_command(card, picture.parent) == b"7 words of 30 pixels"


def test_handler_of_torchserves_is_tried(open_page, tmp_path):
    # Given
    page = open_page()
    card = page.card("innocent")
    assert "TorchServe handler" in card.inner_text()
    # When
    card.get_by_label("Text", exact=True).first.check()
    card.get_by_label("Text", exact=True).last.fill("hello")
    # Then
    assert page.send(card).startswith("200 OK")
    assert "hello" in page.answer_text(card)
    assert b"hello" in run_command(card, tmp_path)


def test_json_is_tried_from_the_example_and_what_models_say_is_text(open_page, tmp_path):
    # Given
    page = open_page()
    summary, price = page.card("sentiment"), page.card("price")
    assert HOSTILE in summary.inner_text()
    assert page.send(price).startswith("200 OK")
    assert page.answer_text(price) == '{\n  "price": 300\n}'
    assert run_command(price, tmp_path) == b'{"price":300}'
    # When
    price.get_by_label("JSON", exact=True).last.fill('{"rooms": 10, "note": ""}')
    # Then
    assert page.send(price).startswith("400 Bad Request")
    assert "onerror" in page.answer_text(price)
    assert page.tab.title() == "torchferry"
    assert page.tab.locator("img[src=x]").count() == 0


def test_batches_appear_while_load_runs(open_page, models):
    # Given
    page = open_page()
    columns = page.tab.locator("#strip > div")
    is_over = threading.Event()

    def ask():
        with requests.Session() as session:
            session.trust_env = False
            while not is_over.is_set():
                session.post(f"{models.inference}/predictions/sentiment", data=b"x", timeout=20)

    clients = [threading.Thread(target=ask) for _ in range(8)]
    for client in clients:
        client.start()
    # When / Then
    try:
        eventually(lambda: columns.count() > 20, 20)
        told = page.tab.locator("#told")
        eventually(lambda: "sentiment: 8 of 16" in told.inner_text(), 20)
        assert "in the handler" in told.inner_text()
        assert float(page.tab.locator("#mean-size").inner_text()) > 1
    finally:
        is_over.set()
        for client in clients:
            client.join()
    page.tab.get_by_text("The last ten as a table").click()
    assert page.tab.locator("#table tr").count() == 10


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1280)])
def test_page_is_as_wide_as_the_window_and_axe_finds_nothing_serious(open_page, scheme, width):
    # Given
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    for name in (*MODELS, "innocent"):
        page.send(page.card(name))
    assert page.tab.evaluate("document.documentElement.scrollWidth") == width
    page.tab.get_by_text("The last ten as a table").click()
    # When
    violations = Axe().run(page.tab).response["violations"]
    # Then
    assert [one["id"] for one in violations if one["impact"] in ("serious", "critical")] == []


def test_api_document_is_read_at_docs(open_page):
    # Given
    page = open_page("/docs")
    # When
    operation = page.tab.locator(".opblock", has_text="/predictions/price")
    operation.wait_for()
    operation.locator("button").first.click()
    # Then
    operation.get_by_text("Request body").wait_for()
    assert "onerror" in operation.inner_text()  # of the example
    assert page.tab.locator("img[src=x]").count() == 0
