"""Which receivers there may be, and which secrets sign what they are told."""

import base64

import pytest

from batching.webhooks import ReceiverRules, read_secrets

SECRETS = [f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2, 3)]
BAD_SECRETS = (
    *("secret", "whsec_", "whsec_!", SECRETS[0].replace("whsec", "whpk")),
    *(f"whsec_{base64.b64encode(b'x' * size).decode()}" for size in (5, 23, 65)),
)
RULES = ReceiverRules.of(False, "inside.example, 10.1.2.3")


@pytest.mark.parametrize("text", [*BAD_SECRETS, ",".join(SECRETS)])
def test_bad_secret_is_refused(text):
    with pytest.raises(ValueError, match=r"whsec_|two"):
        read_secrets(text)


PUBLIC = (
    *("receiver.example/hook?a=b", "receiver.example:8443", "93.184.216.34/"),
    *("[2606:2800:220:1::1]/", "inside.example/", "10.1.2.3/"),
)


@pytest.mark.parametrize("rest", PUBLIC)
def test_public_receiver_may_be(rest):
    assert RULES.check_url(f"https://{rest}").hostname


NO_URLS = (
    *("", "receiver.example", "http://receiver.example/", "ftp://receiver.example/"),
    *("file:///etc/passwd", "https://", "https:///path", "https://receiver.example/#part"),
    *("https://user@receiver.example/", "https://user:secret@receiver.example/"),
    *("https://receiver.example:0/", "https://receiver.example:99999/"),
    *("https://receiver.example/\r\nhost: x", "https://receiver.example/a b"),
    *("https://receiver.example\\@127.0.0.1/", "https://receiver.example%2f.x/"),
    *("https://ü.example/", "https://receiver.example/" + "x" * 2000),
)
INSIDE = (
    *("localhost", "localhost.", "a.localhost", "metadata.google.internal", "printer.local"),
    *("127.0.0.1", "127.1", "2130706433", "0x7f.1", "017700000001", "0", "10.0.0.1"),
    *("169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[fe80::1%25eth0]", "[fd00:ec2::254]"),
)


@pytest.mark.parametrize("url", [*NO_URLS, *(f"https://{host}/path" for host in INSIDE)])
def test_receiver_that_may_lead_inside_is_refused(url):
    with pytest.raises(ValueError):  # noqa: PT011 - each its own words
        RULES.check_url(url)


@pytest.mark.parametrize("url", ["https://x:99999/", "https://x:y/", "https://[/", "https://./"])
def test_url_that_is_none_is_told_what_it_should_be(url):
    with pytest.raises(ValueError, match="an https:// URL of a host, with a port from 1 to 65535"):
        RULES.check_url(url)


def test_plain_http_is_for_those_who_allow_it():
    assert ReceiverRules.of(True, "").check_url("http://receiver.example/").scheme == "http"


def test_one_private_address_among_public_ones_is_enough():
    RULES.check_addresses("receiver.example", ["93.184.216.34", "2606:2800:220:1::1"])
    RULES.check_addresses("inside.example", ["10.0.0.1"])
    for address in ("10.0.0.1", "127.0.0.1", "::1", "::ffff:10.0.0.1", "169.254.169.254"):
        with pytest.raises(ValueError, match="not public"):
            RULES.check_addresses("receiver.example", ["93.184.216.34", address])
