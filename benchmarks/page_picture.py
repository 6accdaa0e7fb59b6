"""Takes README's picture of the page, under load: `make screenshots`. Needs Chromium.

Writes docs/images/page.png and page-dark.png. The server and its load are also those of
`benchmarks.dashboard_picture`.
"""

import contextlib
import math
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from playwright.sync_api import Page, sync_playwright

from benchmarks.measuring.records import ROOT
from benchmarks.servers import child

IMAGES = ROOT / "docs" / "images"
MODEL = "sentiment"
SIZE = {"width": 1280, "height": 920}
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
def serving(folder: Path) -> Iterator[str]:
    """Runs a server of the example for the length of a with block; yields its address.

    Its metrics are two ports higher.
    """
    [port] = child.free_ports(1)
    program = str(ROOT / "examples" / f"{MODEL}.py")
    command = [child.ferry_command(), "serve", program, "--port", str(port), "--no-reload"]
    server = child.Child(command, child.inherited_environment(), folder)
    server.start()
    try:
        end_s = time.monotonic() + START_S
        while not is_ready(child.local(port)):
            if time.monotonic() > end_s or not server.is_running:
                raise SystemExit(f"the server was not ready:\n{server.log_tail()}")
            time.sleep(0.2)
        yield child.local(port)
    finally:
        server.stop()


def is_ready(url: str) -> bool:
    with contextlib.suppress(requests.ConnectionError, requests.Timeout):
        answer = requests.post(f"{url}/predictions/{MODEL}", data=TEXTS[0], timeout=30)
        return answer.ok and requests.get(f"{url}/readyz", timeout=5).ok
    return False


@contextlib.contextmanager
def under_load(url: str, wave_s: float = 2.5) -> Iterator[None]:
    """Has clients ask the model for the length of a with block, in waves of this length."""
    is_over = threading.Event()
    with ThreadPoolExecutor(CLIENTS) as clients:
        for number in range(CLIENTS):
            clients.submit(ask, url, number, wave_s, is_over)
        try:
            yield
        finally:
            is_over.set()


def ask(url: str, number: int, wave_s: float, is_over: threading.Event) -> None:
    """Sends requests one after another, most clients only while a wave is high."""
    with requests.Session() as session:
        session.trust_env = False
        while not is_over.is_set():
            share = 0.5 + 0.5 * math.sin(time.monotonic() * math.tau / wave_s)
            if number < 3 + share * CLIENTS:
                text = random.choice(TEXTS).encode()
                session.post(f"{url}/predictions/{MODEL}", data=text, timeout=30)
            else:
                is_over.wait(0.02)


def take(page: Page, url: str, path: Path) -> None:
    """Opens the page, asks the model something, and takes the picture under load."""
    page.goto(url)
    card = page.locator(".model").first
    card.wait_for()
    with under_load(url):
        time.sleep(LOAD_S)
        card.get_by_role("button", name="Send", exact=True).click()
        card.locator(".answer pre").wait_for()
        page.mouse.move(0, 0)
        page.screenshot(path=path)
    tell_size(path)


def tell_size(path: Path) -> None:
    """Prints the size of a picture; ends the program if it is too large for a document."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{path} has {size} bytes: at most {MAX_BYTES} are wanted")
    print(f"{path.relative_to(ROOT)}: {size} bytes")


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium: apt-get install chromium")
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder)) as url,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme)
            take(context.new_page(), url, IMAGES / name)
            context.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
