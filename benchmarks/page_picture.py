"""Takes README's picture of the page, under load: `make screenshots`. Needs Chromium.

Writes docs/images/page.png and page-dark.png.
"""

import contextlib
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import requests
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
EXAMPLE = ROOT / "examples" / "sentiment.py"
FERRY = Path(sys.executable).parent / "ferry"
PORT = 17_480
URL = f"http://127.0.0.1:{PORT}"
WIDTH, HEIGHT = 1280, 920
MAX_BYTES = 300_000
CLIENTS, LOAD_S, START_S = 40, 8.0, 120.0
# No sandbox, as root may run this; the rest keeps Chromium from asking its maker's hosts.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
TEXTS = (
    "A wonderful film, great fun!",
    "Dull, and a waste of time.",
    "I loved every minute of it.",
)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[None]:
    """Runs a server of the example for the length of a with block."""
    command = [str(FERRY), "serve", str(EXAMPLE), "--port", str(PORT), "--no-reload"]
    if subprocess.run([*command[:2], "--help"], capture_output=True, check=False).returncode:
        write_archive(folder / "sentiment")
        command = [str(FERRY), "up", "--port-base", str(PORT), "--model-store", str(folder)]
        command += ["--load-models", "sentiment"]
    with subprocess.Popen(command, cwd=folder, stdout=sys.stderr) as server:
        try:
            wait_until_ready()
            yield
        finally:
            server.terminate()


def write_archive(folder: Path) -> None:
    """Writes what `ferry serve` has no need of."""
    (folder / "MAR-INF").mkdir(parents=True)
    shutil.copy(EXAMPLE, folder)
    (folder / "model-config.yaml").write_text(
        "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 16\nmaxBatchDelay: 10\nbatchPolicy: adaptive\n"
    )
    model = {
        "modelName": "sentiment",
        "modelVersion": "1.0",
        "handler": "python_model",
        "target": "sentiment.py:Sentiment",
        "configFile": "model-config.yaml",
    }
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": model}))


def wait_until_ready() -> None:
    """Returns once a request would be answered."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        with contextlib.suppress(requests.ConnectionError):
            models = requests.get(f"{URL}/page/models", timeout=5)
            if models.ok and models.json() and requests.get(f"{URL}/readyz", timeout=5).ok:
                return
        time.sleep(0.2)
    raise SystemExit(f"the server was not ready within {START_S:.0f} s")


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Sends requests in waves, for the length of a with block."""
    is_over = threading.Event()

    def ask(number: int) -> None:
        with requests.Session() as session:
            session.trust_env = False
            while not is_over.is_set():
                share = 0.5 + 0.5 * math.sin(time.monotonic() * 2.5)
                if number < 3 + share * CLIENTS:
                    text = random.choice(TEXTS).encode()
                    session.post(f"{URL}/predictions/sentiment", data=text, timeout=30)
                else:
                    is_over.wait(0.02)

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        is_over.set()
        for client in clients:
            client.join()


def take(page: Page, path: Path) -> None:
    """Opens the page, asks the model something, and takes the picture under load."""
    page.goto(URL)
    card = page.locator(".model").first
    card.wait_for()
    with load():
        time.sleep(LOAD_S)
        card.get_by_role("button", name="Send", exact=True).click()
        card.locator(".answer pre").wait_for()
        page.mouse.move(0, 0)
        page.screenshot(path=path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{path} has {size} bytes: at most {MAX_BYTES} are wanted")
    print(f"{path.relative_to(ROOT)}: {size} bytes")


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder)),
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
            size = {"width": WIDTH, "height": HEIGHT}
            context = browser.new_context(viewport=size, color_scheme=scheme)
            take(context.new_page(), IMAGES / name)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
