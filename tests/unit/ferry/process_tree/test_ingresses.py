"""The ingress processes of a host: how many, and which addresses they can share."""

import pytest

from batching.settings.settings import Settings, SettingsError
from ferry.process_tree import parts


@pytest.mark.parametrize(
    ("cores", "count"), [(1, 1), (4, 1), (7, 1), (8, 2), (12, 3), (16, 4), (128, 4)]
)
def test_whole_server_has_an_ingress_process_for_four_cores(monkeypatch, cores, count):
    # Given
    monkeypatch.setattr(parts, "usable_cores", lambda: cores)
    # When / Then
    assert parts.count_by_cores(Settings()) == count
    assert parts.count_by_cores(Settings(ingress_processes=3)) == 3


def test_unix_socket_has_one_ingress_process(monkeypatch):
    # Given
    monkeypatch.setattr(parts, "usable_cores", lambda: 16)
    settings = Settings(inference_address="unix:/tmp/inference.sock")
    # When / Then
    assert parts.count_by_cores(settings) == 1
    with pytest.raises(SettingsError, match="a unix socket has one listener"):
        Settings(inference_address="unix:/a.sock", ingress_processes=2).check()
