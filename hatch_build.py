"""Writes the commit into what is built of torchferry; `ferry --version` reads it there."""

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds ferry/commit.txt to a wheel or a source distribution that is built from a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the file, from a temporary folder: the checkout stays as it is."""
        code = runpy.run_path(str(Path(self.root, "ferry", "version.py")))
        commit = code["commit"]()
        # An editable installation asks git each time; an unpacked source distribution has the file.
        if version == "editable" or code["COMMIT_FILE"].is_file() or not commit:
            return
        self._folder = tempfile.TemporaryDirectory()  # removed with this object
        file = Path(self._folder.name, "commit.txt")
        file.write_text(f"{commit}\n", encoding="utf-8")
        build_data["force_include"][str(file)] = "ferry/commit.txt"
