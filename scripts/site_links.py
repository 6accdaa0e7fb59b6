"""Hook of mkdocs: what a page links to outside of docs/ is no page of the site.

On a site such a link leads to the repository, if mkdocs.yml has its `repo_url`; else its text
stays. `tests/unit/project/test_documents.py` holds that these links lead somewhere.
"""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Returns the page's text with these links replaced."""
    folder = posixpath.dirname(page.file.src_uri)
    repository = (config["repo_url"] or "").rstrip("/")

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        place = posixpath.normpath(posixpath.join("docs", folder, target))
        if "://" in target or target.startswith("#") or place.startswith("docs/"):
            return match[0]
        return f"[{text}]({repository}/blob/main/{place})" if repository else text

    return _LINK.sub(replaced, markdown)
