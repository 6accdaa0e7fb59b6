"""Settings: sources, precedence, spelling, and the ways into a child process and a file."""

import re
from dataclasses import replace
from pathlib import Path

import javaproperties
import pytest

from batching.settings.loading import IGNORED, load_settings
from batching.settings.settings import BY_KEY, SETTINGS, Settings, SettingsError

ROOT = Path(__file__).parents[4]


@pytest.fixture
def load(tmp_path):
    """Loads a file with this content, and an environment of these variables only."""
    path = tmp_path / "config.properties"

    def from_sources(content="", environment=None, flags=None, defaults=None):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_settings(path, environment or {}, flags, defaults)[0]

    return from_sources


def test_settings_are_torchserves_defaults_without_any_source():
    settings, unknown = load_settings(None, {}, {})
    assert (settings, unknown) == (Settings(), [])
    assert list(settings.addresses().values()) == [f"http://127.0.0.1:808{n}" for n in range(3)]
    assert (settings.job_queue_size, settings.max_request_size_bytes) == (100, 6_553_500)
    # And an address of metrics that are switched off is neither needed nor named
    addresses = replace(settings, enable_metrics_api=False).addresses()
    assert list(addresses) == ["inference", "management"]


def test_settings_read_torchserves_keys_when_a_file_has_them(load):
    text = (
        "# as the docker image ships it\n"
        "inference_address=http://0.0.0.0:8080\n"
        "job_queue_size = 1000\n"
        "default_response_timeout=7\n"
        "max_request_size=123\n"
        "model_store=$$STORE$$/model-store\n"
        "decode_input_request=FALSE\n"
        "metrics_mode=LOG\n"
        "load_models=a=a.mar,\\\n  b.mar\n"
    )
    assert load(text, {"STORE": "/srv"}) == Settings(
        inference_address="http://0.0.0.0:8080",
        job_queue_size=1000,
        default_response_timeout_s=7,
        max_request_size_bytes=123,
        model_store=Path("/srv/model-store"),
        decode_input_request=False,
        metrics_mode="log",
        load_models="a=a.mar,b.mar",
    )
    with pytest.raises(SettingsError, match="STORE is not set"):
        load(text)


SOURCES = {
    "default of a command": ({}, {}, {}, 7),
    "file": ({"job_queue_size": 1}, {}, {}, 1),
    "environment": ({"job_queue_size": 1}, {"FERRY_JOB_QUEUE_SIZE": "2"}, {}, 2),
    "flag": ({"job_queue_size": 1}, {"FERRY_JOB_QUEUE_SIZE": "2"}, {"job_queue_size": 3}, 3),
    "flag that was not given": ({"job_queue_size": 1}, {}, {"job_queue_size": None}, 1),
    "variable of TorchServe's": ({}, {"TS_JOB_QUEUE_SIZE": "4"}, {"job_queue_size": 3}, 3),
    "the same, switched on": (
        {"job_queue_size": 1, "enable_envvars_config": "true"},
        {"TS_JOB_QUEUE_SIZE": "4"},
        {"job_queue_size": 3},
        4,
    ),
}


@pytest.mark.parametrize(
    ("file", "environment", "flags", "expected"), SOURCES.values(), ids=SOURCES
)
def test_each_source_overrides_those_before_it(load, file, environment, flags, expected):
    text = "".join(f"{key}={value}\n" for key, value in file.items())
    settings = load(text, environment, flags, {"job_queue_size": 7})
    assert settings.job_queue_size == expected


@pytest.mark.parametrize(
    ("environment", "name", "expected"),
    [
        ({"REDIS_URL": "redis://plain"}, "redis_url", "redis://plain"),
        ({"REDIS_URL": "redis://r", "FERRY_REDIS_URL": "redis://own"}, "redis_url", "redis://own"),
        ({"LOG_LOCATION": "/var/log/ts"}, "log_location", Path("/var/log/ts")),
        ({"FERRY_DRAIN_TIMEOUT": "60"}, "drain_timeout_s", 60),
        ({"FERRY_DRAIN_TIMEOUT_S": "60"}, "drain_timeout_s", 60),
        ({"FERRY_DRAIN_TIMEOUT": "7", "FERRY_DRAIN_TIMEOUT_S": "60"}, "drain_timeout_s", 60),
    ],
)
def test_variable_has_the_name_of_key_or_option_or_another_programs(
    load, environment, name, expected
):
    assert getattr(load("redis_url=redis://file\n", environment), name) == expected


def test_torchserve_variables_have_their_irregular_names(load):
    environment = {"TS_TOKEN_EXPIRATION_TIME_MIN": "5", "TS_TOKEN_EXPIRATION_MIN": "6"}
    environment |= {"TS_METRIC_TIME_INTERVAL": "1", "TS_MAX_REQUEST_SIZE": "11"}
    environment |= {"TS_DISABLE_TOKEN_AUTHORIZATION": "true"}
    assert load("enable_envvars_config=true\n", environment) == Settings(
        token_expiration_min=5, disable_token_authorization=True, max_request_size_bytes=11
    )


def test_allowed_urls_come_from_a_variable_only_when_the_file_says_so_twice(load):
    one, other = "enable_envvars_config=true\n", "use_env_allowed_urls=true\n"
    for text, is_taken in ((one, False), (other, False), (one + other, True)):
        settings = load(text, {"TS_ALLOWED_URLS": "https://mine/.*"})
        assert (settings.allowed_urls == "https://mine/.*") is is_taken


def test_model_api_has_all_its_spellings(load):
    for text in ("enable_model_api=false", "model_api_enabled=false", "model_control_mode=none"):
        assert load(text).enable_model_api is False
    assert load("model_control_mode=explicit").enable_model_api is True


@pytest.mark.parametrize("text", ["1", "yes", "on", "ture"])
def test_settings_refuse_a_variable_that_is_neither_true_nor_false(load, text):
    # Tokens would be off for who wanted them on
    with pytest.raises(SettingsError, match=f"FERRY_TOKEN_AUTH='{text}' is neither true nor false"):
        load(environment={"FERRY_TOKEN_AUTH": text})


@pytest.mark.parametrize(
    ("key", "variable"),
    [("job_queue_size", "FERRY_JOB_QUEUE_SIZE"), ("drain_timeout", "FERRY_DRAIN_TIMEOUT_S")],
)
def test_settings_name_the_source_when_a_value_has_the_wrong_type(load, key, variable):
    with pytest.raises(SettingsError, match=f"{key}='many' is not a "):
        load(f"{key}=many\n")
    with pytest.raises(SettingsError, match=f"{variable}='many' is not a "):
        load(environment={variable: "many"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("log_level=loud", "log_level='loud' is not one of: debug, info"),
        ("job_queue_size=0", "job_queue_size must be from 1 to 2147483647, not 0: requests that"),
        ("default_response_timeout=0", "default_response_timeout must be from 1"),
        ("drain_timeout=inf", "drain_timeout must"),
        ("queue_timeout=nan", "queue_timeout must"),
        ("token_expiration_min=99999999999", "token_expiration_min must"),
        ("model_control_mode=poll", "model_control_mode='poll' is not one of: explicit, none"),
        ("metrics_mode=loud", "metrics_mode='loud' is not one of: log, prometheus, legacy"),
        ("service_envelope=brown", "service_envelope='brown' is not one of: body, json, kserve"),
        ("service_envelope=json\nopen_inference_rows=true", "without a service_envelope"),
        ("blacklist_env_vars=(", "blacklist_env_vars: missing .*regular expression of"),
        ("allowed_urls=https://x/.*,[a", "allowed_urls: unterminated .*comma list of regular"),
        ("models={", "models: this is not JSON"),
        ('models=["m"]', 'models: write {"model".*Expected `object`, got `array`'),
        ('models={"m": {"1.0": 3}}', 'models: write {"model".*Expected `object`, got `int`'),
        ('models={"m": {"1": {"batchSize": "x"}}}', 'batchSize is a whole number, not "x"'),
        ('models={"m": {"1": {"minWorkers": 1.5}}}', "minWorkers is a whole number, not 1.5"),
        ("token_authorization=yes", "token_authorization='yes' is neither true nor false"),
        ("model_store=a\\u0000b", "model_store has a character that is no text"),
        ("default_service_handler=\\ud800", "default_service_handler has a character that"),
        ("path_aliases=predict=/invocations", "write /path=/route, not predict=/invocations"),
        ("path_aliases=/predict", "write /path=/route, not /predict"),
        ("trusted_proxies=10.0.0.0/8, proxy.local", "comma list of addresses and networks"),
        ("trusted_proxies=10.0.0.1/8", "has host bits set"),
        ("cors_allowed_origin=https://\\u20ac", "characters that no header may have"),
        ("cors_allowed_headers=a\\nb: c", "cors_allowed_headers: 'a.*nb: c' has characters"),
        ("redis_url=rediss://r\nredis_key_file=/k", "redis_key_file needs redis_cert_file"),
        ("ingress_processes=2\ninference_address=unix:/a", "a unix socket has one listener"),
    ],
)
def test_settings_say_what_is_wrong(load, text, words):
    with pytest.raises(SettingsError, match=words):
        load(f"{text}\n")


# Every kind of field away from its default.
UNUSUAL = Settings(
    redis_url="redis://:secret@host",
    model_store=Path("/srv/models"),
    load_models="a=a.mar,b.mar",
    model_settings='{"m": {"1.0": {"batchSize": 8}}}',
    enable_model_api=False,
    token_auth=True,
    number_of_gpu=0,
    queue_timeout_s=0.5,
    drain_timeout_s=4.3,
)


def test_settings_survive_the_way_into_a_child_process_and_through_a_file(load):
    assert load(environment=UNUSUAL.to_environment()) == UNUSUAL
    # A file has no secret in it, and nothing that belongs to one start only
    received = load(javaproperties.dumps(UNUSUAL.to_properties()))
    assert received == replace(UNUSUAL, redis_url="", drain_timeout_s=8.0)


def documented_default(setting):
    """The default as docs/configuration.md writes it."""
    value = setting.default
    if value in (None, ""):
        return "\N{EN DASH}"
    is_large = type(value) in (int, float) and value >= 1
    return f"{f'{value:,.0f}' if is_large else str(value).lower()} {setting.unit}".strip()


def test_tables_of_the_document_are_those_of_the_settings():
    # Given the rows of all tables of settings, and the sections that have them
    text = (ROOT / "docs" / "configuration.md").read_text()
    tables = re.findall(r"^\| setting \| default .*\n\|-.*\n((?:\|.*\n)+)", text, re.M)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", "".join(tables), re.M))
    # Then: each has its key and its default, and the limits are all there
    assert rows == {key: documented_default(BY_KEY[key]) for key in rows}
    limits = {it.key for it in SETTINGS if it.section == "Requests and answers"}
    assert limits <= rows.keys()


def test_snapshot_brings_back_what_it_holds_and_not_what_its_server_began_with(load, tmp_path):
    text = "load_models=unregistered-since.mar\nmodel_snapshot={}\n"
    settings = load(text)
    assert (settings.load_models, settings.snapshot_file) == ("", tmp_path / "config.properties")
    assert load(text, flags={"load_models": "more.mar"}).load_models == "more.mar"
    assert load(text, {"FERRY_LOAD_MODELS": "x.mar"}).load_models == "x.mar"


def test_numbers_of_models_may_stand_in_quotes_as_in_torchserve(load):
    text = 'models={"m": {"1.0": {"batchSize": "8", "marName": "8.mar", "defaultVersion": true}}}'
    words = {"batchSize": 8, "marName": "8.mar", "defaultVersion": True}
    assert load(text).model_defaults().model_settings == {"m": {"1.0": words}}


CONTENTS = {
    "UTF-8 of Windows": b"\xef\xbb\xbfjob_queue_size=7\r\nlog_location=caf\xc3\xa9\r\n",
    "Latin-1, as TorchServe reads it": b"# d\xe9but\njob_queue_size=7\nlog_location=caf\xe9\n",
    "escaped": b"job_queue_size=7\nlog_location=caf\\u00e9\n",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_file_is_read_in_the_encodings_that_there_are(tmp_path, content):
    path = tmp_path / "config.properties"
    path.write_bytes(content)
    expected = Settings(job_queue_size=7, log_location=Path("café"))
    assert load_settings(path, {}) == (expected, [])


def test_file_that_is_no_text_is_refused(load):
    with pytest.raises(SettingsError, match=r"cannot read .*config\.properties: it is no text"):
        load(b"PK\x03\x04\x00\x00")


def test_keys_without_effect_are_named_and_nothing_else(tmp_path):
    # Given a file with each ignored key, and with an unknown one
    path = tmp_path / "config.properties"
    path.write_text("".join(f"{key}=x\n" for key in (*IGNORED, "of_tomorrow")))
    # When / Then
    assert load_settings(path, {}, {}) == (Settings(), sorted([*IGNORED, "of_tomorrow"]))
