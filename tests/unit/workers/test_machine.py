import importlib.metadata

import pytest

from workers.machine import require_safe_torch


@pytest.mark.parametrize("version", ["2.5.1", "2.5.1+cu124", "1.13.0", "0.4"])
def test_b13_no_handler_loads_beside_an_old_torch(version, load_handler, monkeypatch):
    # Given
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    source = "def handle(data, context): return data"
    # When / Then
    with pytest.raises(ImportError, match=r"malicious checkpoints: 2\.6 or later"):
        load_handler({"echo.py": source}, handler="echo.py")


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0+cpu", "3.0.0a1", None])
def test_b13_newer_torch_is_taken_and_a_missing_one_is_no_error(version, monkeypatch):
    def version_of(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", version_of)
    require_safe_torch()
