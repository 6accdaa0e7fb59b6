"""The key file by itself: made, shared, renewed, expired, refused."""

import datetime
import json
import stat
from pathlib import Path

import pytest

from batching.settings.settings import Settings, SettingsError
from ingress.access.tokens import KeyFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "key_file.json"


@pytest.fixture
def keys(path):
    made = KeyFile(path, lifetime_min=60)
    made.open()
    return made


def key_of(path, scope):
    return json.loads(path.read_text())[scope]["key"]


def test_key_file_has_torchserves_shape_and_belongs_to_its_user_alone(keys, path):
    # When
    document = json.loads(path.read_text())
    # Then
    assert list(document) == ["management", "inference", "API"]
    assert [list(entry) for entry in document.values()] == [
        ["key", "expiration time"],
        ["key", "expiration time"],
        ["key"],
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(len(entry["key"]) == 43 for entry in document.values())
    expires = datetime.datetime.fromisoformat(document["inference"]["expiration time"])
    left = expires - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(minutes=59) < left <= datetime.timedelta(minutes=60)
    assert list(path.parent.iterdir()) == [path]


def test_key_file_is_shared_and_renewals_are_noticed(keys, path):
    # Given a second ingress
    other = KeyFile(path, lifetime_min=60)
    other.open()
    old = key_of(path, "inference")
    assert keys.accepts("inference", old)
    # When
    other.renew("inference", f"Bearer {key_of(path, 'API')}")
    # Then the new key works at once, and the old one no more
    assert keys.accepts("inference", key_of(path, "inference"))
    assert not keys.accepts("inference", old)


def test_expired_key_opens_nothing_and_is_replaced_at_the_next_start(path):
    # Given
    keys = KeyFile(path, lifetime_min=0)
    keys.open()
    old = key_of(path, "management")
    # When / Then
    assert not keys.accepts("management", old)
    assert keys.accepts("API", key_of(path, "API"))
    # When
    restarted = KeyFile(path, lifetime_min=60)
    restarted.open()
    # Then
    assert key_of(path, "management") != old
    assert restarted.accepts("management", key_of(path, "management"))


def test_operators_own_keys_live_as_long_as_they_say(path):
    # Given
    past, future = "2020-01-01T00:00:00.123456789Z", "2999-01-01T00:00:00Z"
    own = {
        "management": {"key": "m" * 8, "expiration time": future},
        "inference": {"key": "i" * 8},
    }
    path.write_text(json.dumps(own))
    keys = KeyFile(path, lifetime_min=60)
    # When
    keys.open()
    # Then
    assert keys.accepts("management", "m" * 8)
    assert keys.accepts("inference", "i" * 8)
    assert not keys.accepts("API", "")
    assert json.loads(path.read_text()) == own
    # When it is replaced by one that has expired
    own["management"]["expiration time"] = past
    path.with_suffix(".new").write_text(json.dumps(own))
    path.with_suffix(".new").rename(path)
    # Then
    assert not keys.accepts("management", "wrong")
    assert not keys.accepts("management", "m" * 8)


def test_keys_known_so_far_stay_when_the_file_is_gone(keys, path):
    # Given
    key = key_of(path, "inference")
    # When
    path.unlink()
    # Then
    assert not keys.accepts("inference", "wrong")
    assert keys.accepts("inference", key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"management": {}}',
        '{"management": {"key": ""}}',
        '{"inference": {"key": 5}}',
        '{"inference": {"key": "x", "expiration time": "soon"}}',
        '{"inference": {"key": "x", "expiration time": "2999-01-01T00:00:00"}}',
    ],
)
def test_key_file_that_is_none_is_refused_at_start(path, text):
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"key_file=.* makes a new one where there is none"):
        KeyFile(path, lifetime_min=60).open()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"token_auth": True}, Path("key_file.json")),
        ({"key_file": Path("/run/keys.json")}, Path("/run/keys.json")),
        ({"key_file": Path("/run/keys.json"), "disable_token_authorization": True}, None),
    ],
)
def test_tokens_are_asked_for_when_a_setting_says_so(given, expected):
    assert Settings(**given).keys_path() == expected
