from dataclasses import replace
from pathlib import Path

import pytest

from batching.settings.settings import Settings, SettingsError
from ingress.access.certificate import certificate_of
from ingress.http1.listener import Address
from ingress.role import Role, has_page, listener_table, parse_address


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


OPEN = {"management_address": "http://0.0.0.0:8081"}


@pytest.mark.parametrize(
    "given",
    [
        OPEN,
        {"management_address": "http://[::]:8081"},
        {"management_address": "http://192.0.2.1:8081"},
        {**OPEN, "token_auth": True, "disable_token_authorization": True},
        # On the port of inference, which is open.
        {**OPEN, "inference_address": OPEN["management_address"]},
    ],
)
def test_management_refuses_the_network(given):
    with pytest.raises(SettingsError, match=r"token_authorization=true.*allow_open_management"):
        listener_table(replace(Settings(), **given))


@pytest.mark.parametrize(
    "asked",
    [{"allow_open_management": True}, {"token_auth": True}, {"key_file": Path("keys.json")}],
)
def test_management_opens_when_told_to_or_when_it_asks_for_tokens(asked):
    table = listener_table(replace(Settings(), **OPEN, **asked))
    assert Address("0.0.0.0", 8081) in table


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


def test_address_whose_host_has_none_is_refused_with_the_reason():
    with pytest.raises(SettingsError, match=r"the host has no address .*too long"):
        parse_address(f"http://{'a' * 64}:1", Role.INFERENCE)


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


# --- where browsers are shown the page

LOCAL, OPEN_TO_ALL, SOCKET = "http://127.0.0.1:8080", "http://0.0.0.0:8080", "unix:/run/ferry.sock"


@pytest.mark.parametrize(
    ("page", "address", "is_there"),
    [
        ("loopback", LOCAL, True),
        ("loopback", "http://localhost:8080", True),
        ("loopback", "https://[::1]:8080", True),
        ("loopback", OPEN_TO_ALL, False),
        # Behind a proxy, whose clients may be anybody.
        ("loopback", SOCKET, False),
        ("on", OPEN_TO_ALL, True),
        ("on", SOCKET, True),
        ("off", LOCAL, False),
    ],
)
def test_page_is_there_where_the_setting_says(page, address, is_there):
    # When / Then
    assert has_page(Settings(page=page, inference_address=address)) is is_there


@pytest.mark.parametrize("keys", [{"token_auth": True}, {"key_file": Path("keys.json")}])
def test_page_is_never_there_with_tokens(keys):
    # When / Then
    for page in ("on", "loopback"):
        assert not has_page(Settings(page=page, **keys))
