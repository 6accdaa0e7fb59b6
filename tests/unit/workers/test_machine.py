import importlib.metadata

import pytest

from workers.machine import require_safe_torch


@pytest.mark.parametrize("version", ["2.5.1", "2.5.1+cu124", "1.13.0", "0.4"])
def test_b13_old_torch_is_refused(version, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ImportError, match=r"2\.6 or later"):
        require_safe_torch()


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0+cpu", "3.0.0a1"])
def test_b13_newer_torch_is_taken(version, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    require_safe_torch()


def test_b13_missing_torch_is_no_error(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    require_safe_torch()


def test_b13_no_handler_loads_beside_an_old_torch(load_handler, monkeypatch):
    # Given
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.5.1")
    source = "def handle(data, context): return data"
    # When / Then
    with pytest.raises(ImportError, match="malicious checkpoints"):
        load_handler({"echo.py": source}, handler="echo.py")
