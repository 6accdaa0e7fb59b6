"""The documentation's site, as `make docs` builds it: without a network, and read without one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, FLAGS

ROOT = Path(__file__).parents[3]
LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?([^\s">]+)""")
DOORS = ("Start", "Coming from TorchServe", "Operate", "Contribute")

pytest.importorskip("material", reason="mkdocs-material is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_site_loads_nothing_from_other_hosts(site):
    loaded = {
        f"{page.name}: {target}"
        for page in site.rglob("*.html")
        for target in LOADED.findall(page.read_text(encoding="utf-8"))
    }
    assert len(loaded) > 100
    assert [one for one in loaded if "//" in one.replace("w3.org", "")] == []


def test_site_has_the_four_doors(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    tabs = re.findall(r'class="md-tabs__link">\s*(.*?)\s*</a>', text, re.DOTALL)
    assert [tab for tab in tabs if tab in DOORS] == list(DOORS)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_search_works_on_the_site_as_a_file(site):
    playwright = pytest.importorskip("playwright.sync_api")
    asked = set()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        # Given
        tab = browser.new_page()
        tab.on("request", lambda request: asked.add(request.url.partition(":")[0]))
        tab.goto((site / "index.html").as_uri())
        # When
        tab.get_by_role("textbox", name="Search").fill("idle_timeout")
        found = tab.locator(".md-search-result__link").first
        found.wait_for(timeout=20_000)
        # Then
        pages = {
            link.get_attribute("href") for link in tab.locator(".md-search-result__link").all()
        }
        browser.close()
    assert any("reference/settings.html" in page for page in pages)
    assert asked <= {"file", "blob", "data"}
