"""Hooks of mkdocs: links that leave docs/, and the script that draws diagrams."""

import posixpath
import re
from typing import Any

from mkdocs.utils import get_relative_url

_DIAGRAMS = "assets/mermaid.tiny.js"
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replaces links to files outside of docs/, which are no pages of the site.

    They lead to the repository, if mkdocs.yml has its `repo_url`; else only their text stays. That
    they lead somewhere is tested in `tests/unit/project/test_documents.py`.
    """
    folder = posixpath.dirname(page.file.src_uri)
    repository = (config["repo_url"] or "").rstrip("/")

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        place = posixpath.normpath(posixpath.join("docs", folder, target))
        if "://" in target or target.startswith("#") or place.startswith("docs/"):
            return match[0]
        return f"[{text}]({repository}/blob/main/{place})" if repository else text

    return _LINK.sub(replaced, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Adds the script for diagrams to pages with one: without it the theme asks another host."""
    if 'class="mermaid"' not in output:
        return output
    script = get_relative_url(_DIAGRAMS, page.url)
    return output.replace("</body>", f'<script src="{script}"></script></body>')
