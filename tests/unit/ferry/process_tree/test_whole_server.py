"""A whole server: how many ingress processes it has."""

import pytest

from batching.settings.settings import Settings
from ferry.process_tree import whole_server


@pytest.mark.parametrize(
    ("cores", "count"), [(1, 1), (4, 1), (7, 1), (8, 2), (12, 3), (16, 4), (128, 4)]
)
def test_whole_server_has_an_ingress_process_for_four_cores(monkeypatch, cores, count):
    # Given
    monkeypatch.setattr(whole_server, "usable_cores", lambda: cores)
    unix = Settings(inference_address="unix:/tmp/inference.sock")
    # When / Then
    assert whole_server.count_by_cores(Settings()) == count
    assert whole_server.count_by_cores(Settings(ingress_processes=3)) == 3
    assert whole_server.count_by_cores(unix) == 1
