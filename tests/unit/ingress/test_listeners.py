from dataclasses import replace
from pathlib import Path

import pytest

from batching.settings.settings import Settings, SettingsError
from ingress.listeners import Address, certificate_of, listener_table, parse_address
from ingress.role import Role


def test_listeners_are_on_loopback_by_default():
    table = listener_table(Settings())
    assert {str(address): set(roles) for address, roles in table.items()} == {
        "http://127.0.0.1:8080": {Role.INFERENCE},
        "http://127.0.0.1:8081": {Role.MANAGEMENT},
        "http://127.0.0.1:8082": {Role.METRICS},
    }


def test_roles_with_one_address_share_a_listener():
    settings = replace(
        Settings(),
        management_address="http://127.0.0.1:8080",
        metrics_address="http://127.0.0.1:8080/",
    )
    assert listener_table(settings) == {Address("127.0.0.1", 8080): frozenset(Role)}


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
def test_management_refuses_the_network(host):
    settings = replace(Settings(), management_address=f"http://{host}:8081")
    with pytest.raises(SettingsError, match="allow_open_management"):
        listener_table(settings)


def test_management_opens_when_told_to():
    settings = replace(
        Settings(), management_address="http://0.0.0.0:8081", allow_open_management=True
    )
    assert Address("0.0.0.0", 8081) in listener_table(settings)


@pytest.mark.parametrize("asked", [{"token_auth": True}, {"key_file": Path("keys.json")}])
def test_management_opens_when_it_asks_for_tokens(asked):
    settings = replace(Settings(), management_address="http://0.0.0.0:8081", **asked)
    assert Address("0.0.0.0", 8081) in listener_table(settings)


def test_management_stays_closed_when_tokens_are_switched_off_again():
    settings = replace(
        Settings(),
        management_address="http://0.0.0.0:8081",
        token_auth=True,
        disable_token_authorization=True,
    )
    with pytest.raises(SettingsError, match="token_authorization"):
        listener_table(settings)


def test_management_is_not_smuggled_onto_the_open_inference_port():
    settings = replace(
        Settings(),
        inference_address="http://0.0.0.0:8080",
        management_address="http://0.0.0.0:8080",
    )
    with pytest.raises(SettingsError, match="allow_open_management"):
        listener_table(settings)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1", Address("127.0.0.1", 80)),
        ("http://localhost:1234", Address("127.0.0.1", 1234)),
        ("http://[::1]:1234", Address("::1", 1234)),
        ("https://127.0.0.1", Address("127.0.0.1", 443, is_tls=True)),
        ("unix:/run/ferry.sock", Address("", 0, Path("/run/ferry.sock"))),
    ],
)
def test_address_is_read(text, address):
    assert parse_address(text, Role.INFERENCE) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "8080", "127.0.0.1:8080", "ftp://127.0.0.1:1"),
        *("http://:1", "http://127.0.0.1:x", "http://["),
    ],
)
def test_address_is_refused_with_its_setting_named(text):
    with pytest.raises(SettingsError, match="inference_address"):
        parse_address(text, Role.INFERENCE)


def test_metrics_have_no_listener_when_they_are_switched_off():
    table = listener_table(replace(Settings(), enable_metrics_api=False))
    assert Role.METRICS not in frozenset().union(*table.values())


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_https_names_what_is_missing(tmp_path, scheme):
    # Given
    settings = replace(Settings(), management_address=f"{scheme}://127.0.0.1:8444")
    # When / Then
    with pytest.raises(SettingsError, match="needs certificate_file and private_key_file"):
        certificate_of(settings)
    files = {"certificate_file": tmp_path / "c.pem", "private_key_file": tmp_path / "k.pem"}
    with pytest.raises(SettingsError, match="no such file for https"):
        certificate_of(replace(settings, **files))
