"""Takes the documents' pictures of the page and of the dashboard, under load: `make screenshots`.

    python -m benchmarks.pictures page dashboard

The page is a real Chromium's. The dashboard's panels show what a Prometheus answered to their own
queries; the drawing is matplotlib's, not Grafana's.
"""

import contextlib
import json
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
from typing import Any

import requests
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from playwright.sync_api import sync_playwright

from benchmarks.measuring.records import ROOT
from benchmarks.servers import child
from benchmarks.servers.prometheus import PROMETHEUS, Prometheus
from benchmarks.summary import IMAGES, INK

MODEL = "sentiment"
TEXTS = (
    "A wonderful film, great fun!",
    "Dull, and a waste of time.",
    "I loved every minute of it.",
)
CLIENTS, START_S = 40, 120.0
MAX_BYTES = 300_000  # of each picture, as a test checks

CHROMIUM = shutil.which("chromium")
# No sandbox, as root may run this; the rest keeps Chromium from asking its maker's hosts.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
SIZE = {"width": 1280, "height": 920}
PAGE_WAVE_S, PAGE_LOAD_S = 2.5, 8.0

DASHBOARD = ROOT / "dashboards" / "grafana" / "torchferry.json"
PANELS = (
    *("Answers by status", "Whole request", "Average batch size"),
    *("Waiting in the queue", "In the handler", "Busy workers"),
)
# Rates are those of so many seconds; what is older than the load is not drawn.
RATE_S, WAVE_S, LOAD_S = 10, 25.0, 75.0
# Unit of a panel: how it is written, and its values' factor.
UNITS = {"reqps": ("/s", 1), "s": ("ms", 1000), "short": ("", 1), "percentunit": ("%", 100)}
COLORS = ("#0f9488", "#2563eb", "#c2700a")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[int]:
    """Serves the example for the length of a with block; yields its port, metrics two higher."""
    [port] = child.free_ports(1)
    program = str(ROOT / "examples" / f"{MODEL}.py")
    command = [child.ferry_command(), "serve", program, "--port", str(port), "--no-reload"]
    server = child.Child(command, child.inherited_environment(), folder)
    server.start()
    try:
        end_s = time.monotonic() + START_S
        is_ready = False
        while not is_ready:
            if time.monotonic() > end_s or not server.is_running:
                raise SystemExit(f"the server was not ready:\n{server.log_tail()}")
            time.sleep(0.2)
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                url = f"{child.local(port)}/predictions/{MODEL}"
                is_ready = requests.post(url, data=TEXTS[0], timeout=30).ok
        yield port
    finally:
        server.stop()


@contextlib.contextmanager
def under_load(port: int, wave_s: float) -> Iterator[None]:
    """Has clients ask the model, in waves of this length: most only while one is high."""
    is_over = threading.Event()

    def ask(number: int) -> None:
        with requests.Session() as session:
            session.trust_env = False
            while not is_over.is_set():
                share = 0.5 + 0.5 * math.sin(time.monotonic() * math.tau / wave_s)
                if number < 3 + share * CLIENTS:
                    url = f"{child.local(port)}/predictions/{MODEL}"
                    session.post(url, data=random.choice(TEXTS).encode(), timeout=30)
                else:
                    is_over.wait(0.02)

    with ThreadPoolExecutor(CLIENTS) as clients:
        for number in range(CLIENTS):
            clients.submit(ask, number)
        try:
            yield
        finally:
            is_over.set()


def take_page(port: int) -> None:
    """Opens the page, light and dark, asks the model something, and takes a picture of each."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme)
            page = context.new_page()
            page.goto(child.local(port))
            card = page.locator(".model").first
            card.wait_for()
            with under_load(port, PAGE_WAVE_S):
                time.sleep(PAGE_LOAD_S)
                card.get_by_role("button", name="Send", exact=True).click()
                card.locator(".answer pre").wait_for()
                page.mouse.move(0, 0)
                page.screenshot(path=IMAGES / name)
            context.close()
        browser.close()


def draw_dashboard(port: int) -> None:
    """Draws the panels from what Prometheus has of a load."""
    with tempfile.TemporaryDirectory() as folder:
        target = f"127.0.0.1:{port + 2}"
        with Prometheus(Path(folder), target, {"job": "ferry"}, 1) as prometheus:
            with under_load(port, WAVE_S):
                time.sleep(RATE_S)
                start_s = time.time()  # noqa: TID251 - Prometheus' own clock
                time.sleep(LOAD_S)
            figure = Figure(figsize=(12, 5.6), layout="constrained", facecolor="white")
            panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
            shown = {panel["title"]: panel for panel in panels}
            for axes, title in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
                draw_panel(axes, shown[title], prometheus, start_s)
    figure.savefig(IMAGES / "dashboard.png", dpi=100)


def draw_panel(axes: Axes, shown: dict[str, Any], prometheus: Prometheus, start_s: float) -> None:
    """Draws a panel's lines by seconds, from what its queries have, as Grafana would ask."""
    unit, factor = UNITS[shown["fieldConfig"]["defaults"]["unit"]]
    times = {"start": start_s, "end": start_s + LOAD_S, "step": 1}
    lines = []
    for target in shown["targets"]:
        expression = target["expr"].replace("$job", "ferry").replace("$model", ".*")
        expression = expression.replace("$__rate_interval", f"{RATE_S}s")
        for series in prometheus.ask("query_range", expression, **times):
            legend = target["legendFormat"]
            for label, value in series["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            lines.append((legend, series["values"]))
    begin_s = min(values[0][0] for _, values in lines)
    for (legend, values), color in zip(lines, COLORS, strict=False):
        heights = [factor * float(value) for _, value in values]
        axes.plot([at_s - begin_s for at_s, _ in values], heights, color=color, label=legend)
    title = shown["title"]
    axes.set_title(f"{title}, {unit}" if unit else title, loc="left", fontsize=10, color=INK)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelcolor=INK, color=INK, labelsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3, fontsize=8, frameon=False)


# What is taken -> the program that it needs, where that is, and who takes it.
PICTURES = {
    "page": ("chromium", CHROMIUM, take_page),
    "dashboard": ("prometheus", PROMETHEUS, draw_dashboard),
}


if __name__ == "__main__":
    for what in sys.argv[1:]:
        program, path, take = PICTURES[what]
        if path is None:
            raise SystemExit(f"there is no {program}: apt-get install {program}")
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as port:
            take(port)
