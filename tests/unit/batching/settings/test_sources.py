"""TorchServe's environment variables, its spellings, and settings that go back into a file."""

from dataclasses import replace
from pathlib import Path

import javaproperties
import pytest

from batching.settings.loading import doubts, load_settings
from batching.settings.settings import Settings, SettingsError


def load(tmp_path, text, environment=None, flags=None, defaults=None):
    path = tmp_path / "config.properties"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, environment or {}, flags, defaults)[0]


def test_torchserve_variables_count_only_when_the_file_says_so(tmp_path):
    # Given
    environment = {"TS_JOB_QUEUE_SIZE": "7", "FERRY_JOB_QUEUE_SIZE": "5"}
    flags = {"job_queue_size": 3}
    # When
    off = load(tmp_path, "job_queue_size=1\n", environment, flags)
    on = load(tmp_path, "enable_envvars_config=true\njob_queue_size=1\n", environment, flags)
    # Then, they come before file and flags
    assert off.job_queue_size == 3
    assert on.job_queue_size == 7


def test_torchserve_variables_have_their_irregular_names(tmp_path):
    # Given
    environment = {
        "TS_TOKEN_EXPIRATION_TIME_MIN": "5",
        "TS_TOKEN_EXPIRATION_MIN": "6",
        "TS_METRIC_TIME_INTERVAL": "1",
        "TS_DISABLE_TOKEN_AUTHORIZATION": "true",
        "TS_MAX_REQUEST_SIZE": "11",
    }
    # When
    settings = load(tmp_path, "enable_envvars_config=true\n", environment)
    # Then
    assert settings.token_expiration_min == 5
    assert settings.metric_time_interval_s == 60
    assert settings.disable_token_authorization is True
    assert settings.max_request_size_bytes == 11


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("enable_envvars_config=true\n", False),
        ("use_env_allowed_urls=true\n", False),
        ("enable_envvars_config=true\nuse_env_allowed_urls=true\n", True),
    ],
)
def test_allowed_urls_come_from_a_variable_only_when_the_file_says_so_twice(
    tmp_path, text, is_taken
):
    settings = load(tmp_path, text, {"TS_ALLOWED_URLS": "https://mine/.*"})
    assert (settings.allowed_urls == "https://mine/.*") is is_taken


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("enable_model_api=false\n", False),
        ("model_api_enabled=false\n", False),
        ("model_control_mode=none\n", False),
        ("model_control_mode=explicit\n", True),
    ],
)
def test_model_api_has_all_its_spellings(tmp_path, text, expected):
    assert load(tmp_path, text).enable_model_api is expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model_control_mode=poll\n", "model_control_mode='poll' is none of: explicit, none"),
        ("metrics_mode=loud\n", "metrics_mode='loud' is none of: log, prometheus, legacy"),
        ("service_envelope=brown\n", "service_envelope='brown' is none of: body, json, kserve"),
        ("service_envelope=json\nopen_inference_rows=true\n", "without a service_envelope"),
        ("metric_time_interval=0\n", "metric_time_interval must be from 1 to"),
        ("blacklist_env_vars=(\n", "blacklist_env_vars: .* is not a regular expression"),
        ("models={\n", "models: this is not JSON"),
        ('models=["m"]\n', 'models: write {"model".*Expected `object`, got `array`'),
        ('models={"m": {"1.0": 3}}\n', 'models: write {"model".*Expected `object`, got `int`'),
        ('models={"m": {"1": {"batchSize": "x"}}}\n', 'batchSize is a whole number, not "x"'),
        ('models={"m": {"1": {"minWorkers": 1.5}}}\n', "minWorkers is a whole number, not 1.5"),
        ("token_authorization=yes\n", "token_authorization='yes' is neither true nor false"),
        ("model_store=a\\u0000b\n", "model_store has a character that is no text"),
        ("default_service_handler=\\ud800\n", "default_service_handler has a character that"),
        ("path_aliases=predict=/invocations\n", "write /path=/route, not predict=/invocations"),
        ("trusted_proxies=10.0.0.0/8, proxy.local\n", "write addresses, networks"),
        ("trusted_proxies=10.0.0.1/8\n", "has host bits set"),
        ("path_aliases=/predict\n", "write /path=/route, not /predict="),
        ("cors_allowed_origin=https://\\u20ac\n", "characters that no header may have"),
        ("cors_allowed_headers=a\\nb: c\n", "cors_allowed_headers='a.*nb: c' has characters"),
    ],
)
def test_settings_say_what_is_wrong(tmp_path, text, words):
    with pytest.raises(SettingsError, match=words):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "cors_allowed_origin=*\ncors_allowed_methods=GET\n",
            ["cors_allowed_origin, cors_allowed_methods: no effect without cors_allowed_headers"],
        ),
        (
            "cors_allowed_origin=http://a,http://b\ncors_allowed_methods=*\ncors_allowed_headers=*\n",
            ["cors_allowed_origin: browsers take one origin, or *"],
        ),
        (
            'models={"m": {"1": {"batchsize": 8, "of_mine": 1}}}\n',
            ["models: batchsize has no effect; did you mean batchSize?"],
        ),
        (
            'models={"m": {"1": {"minWorkers": 4, "maxWorkers": 2, "deviceIds": "0"}}}\n',
            [
                "models: deviceIds: '0' is ignored, it should be of type list",
                "models: minWorkers and maxWorkers are ignored: give both, "
                "0 < minWorkers <= maxWorkers",
            ],
        ),
        ('models={"m": {"1": {"minWorkers": "1", "maxWorkers": "2"}}}\n', []),
        ('models={"m": {"1": {"minWorkers": 2}}}\n', []),
        (
            "inference_address=http://0.0.0.0:8080/foo\nmanagement_address=http://127.0.0.1:8081/\n"
            "metrics_address=unix:/run/ferry.sock\n",
            ["inference_address: the path /foo has no effect"],
        ),
        ("cors_allowed_origin=*\ncors_allowed_methods=*\ncors_allowed_headers=*\n", []),
    ],
)
def test_settings_that_are_probably_not_meant_so_are_named(tmp_path, text, expected):
    assert list(doubts(load(tmp_path, text))) == expected


def test_numbers_of_models_may_stand_in_quotes_as_in_torchserve(tmp_path):
    text = 'models={"m": {"1.0": {"batchSize": "8", "marName": "8.mar", "defaultVersion": true}}}'
    settings = load(tmp_path, text)
    found = {"batchSize": 8, "marName": "8.mar", "defaultVersion": True}
    assert settings.model_defaults().model_settings == {"m": {"1.0": found}}


def test_defaults_of_a_command_give_way_to_everything_else(tmp_path):
    # Given
    defaults = {"metrics_mode": "log", "token_auth": True}
    # When
    settings = load(tmp_path, "metrics_mode=legacy\n", defaults=defaults)
    # Then
    assert settings.metrics_mode == "legacy"
    assert settings.token_auth is True


def test_log_location_is_torchserves_variable(tmp_path):
    assert load(tmp_path, "", {"LOG_LOCATION": "/var/log/ts"}).log_location == Path("/var/log/ts")


def test_settings_survive_the_way_through_a_file(tmp_path):
    # Given
    settings = Settings(
        redis_url="redis://:secret@host",
        model_store=Path("/srv/models"),
        load_models="a=a.mar,b.mar",
        model_settings='{"m": {"1.0": {"batchSize": 8}}}',
        enable_model_api=False,
        token_auth=True,
        queue_timeout_s=0.5,
        drain_timeout_s=4.3,
    )
    # When
    properties = settings.to_properties()
    # Then
    found = load(tmp_path, javaproperties.dumps(properties))
    # And a secret, and what belongs to one start only, is not in it
    assert found == replace(settings, redis_url="", drain_timeout_s=8.0)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfjob_queue_size=7\r\nlog_location=caf\xc3\xa9\r\n",
        b"# d\xe9but\njob_queue_size=7\nlog_location=caf\xe9\n",
        b"job_queue_size=7\nlog_location=caf\\u00e9\n",
    ],
    ids=["UTF-8 of Windows", "Latin-1, as TorchServe reads it", "escaped"],
)
def test_file_is_read_in_the_encodings_that_there_are(tmp_path, content):
    # Given
    path = tmp_path / "config.properties"
    path.write_bytes(content)
    # When
    settings, without_effect = load_settings(path, {})
    # Then
    assert (settings.job_queue_size, str(settings.log_location)) == (7, "café")
    assert without_effect == []


def test_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "config.properties"
    path.write_bytes(b"PK\x03\x04\x00\x00")
    with pytest.raises(SettingsError, match=r"cannot read .*config\.properties: it is no text"):
        load_settings(path, {})
