"""The documentation's site, as `make docs` builds it: without a network, and read without one."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import sync_playwright

from benchmarks.pictures import CHROMIUM, FLAGS

ROOT = Path(__file__).parents[3]
DOORS = ("Start", "Coming from TorchServe", "Operate", "Contribute")
LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?([^\s">]+)""")

pytest.importorskip("material", reason="mkdocs-material is not installed")
on_page_markdown = pytest.importorskip("scripts.site_hooks").on_page_markdown
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_site_has_the_four_doors(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    tabs = re.findall(r'class="md-tabs__link">\s*(.*?)\s*</a>', text, re.DOTALL)
    assert [tab for tab in tabs if tab in DOORS] == list(DOORS)


def test_links_to_files_that_are_no_pages_keep_their_text_or_lead_to_the_repository():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="adr/0001.md"))
    text = "[`x`](../../ferry/main.py#L3) [y](../jobs.md) [z](0002.md) [w](https://a.b/../c)"
    kept = "[y](../jobs.md) [z](0002.md) [w](https://a.b/../c)"
    assert on_page_markdown(text, page=page, config={"repo_url": None}) == f"`x` {kept}"
    there = "[`x`](https://host/me/blob/main/ferry/main.py#L3)"
    config = {"repo_url": "https://host/me/"}
    assert on_page_markdown(text, page=page, config=config) == f"{there} {kept}"


def test_site_loads_nothing_from_other_hosts(site):
    loaded = {
        f"{page.name}: {target}"
        for page in site.rglob("*.html")
        for target in LOADED.findall(page.read_text(encoding="utf-8"))
    }
    assert len(loaded) > 100
    assert [one for one in loaded if "//" in one.replace("w3.org", "")] == []


def test_lists_are_lists(site):
    # mkdocs, unlike GitHub, wants an empty line between a paragraph and a list.
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    shown = {
        page: re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL) for page, text in texts.items()
    }
    assert [
        page.name for page, text in shown.items() if re.search(r"^- ", text, re.MULTILINE)
    ] == []


@pytest.fixture
def tab():
    """A tab of Chromium's; what it asks for is in `asked`, by the protocol."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page()
        tab.asked = set()
        tab.on("request", lambda request: tab.asked.add(request.url.partition(":")[0]))
        yield tab
        browser.close()


@pytest.mark.browser
def test_search_works_on_the_site_as_a_file(site, tab):
    # When
    tab.goto((site / "index.html").as_uri())
    tab.get_by_role("textbox", name="Search").fill("idle_timeout")
    tab.locator(".md-search-result__link").first.wait_for(timeout=20_000)
    # Then
    links = tab.locator(".md-search-result__link").all()
    assert any("reference/settings.html" in link.get_attribute("href") for link in links)
    assert tab.asked <= {"file", "blob", "data"}


@pytest.mark.browser
def test_diagrams_are_drawn_on_the_site_as_a_file(site, tab):
    # When
    tab.goto((site / "deployments.html").as_uri())
    # Then the theme puts its drawing in the place of the text
    tab.locator("div.mermaid").first.wait_for(timeout=20_000)
    assert tab.locator("div.mermaid").first.bounding_box()["height"] > 50
    assert tab.asked <= {"file", "blob", "data"}
