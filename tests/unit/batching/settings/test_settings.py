"""Settings: sources, precedence, spelling and the way into a child process."""

import re
from pathlib import Path

import pytest

from batching.settings.loading import load_settings
from batching.settings.settings import BY_KEY, SETTINGS, Settings, SettingsError
from batching.settings.torchserve_keys import IGNORED

ROOT = Path(__file__).parents[4]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.properties"
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_are_torchserves_defaults_without_any_source():
    # When
    settings, unknown = load_settings(None, {}, {})
    # Then
    assert (settings, unknown) == (Settings(), [])
    assert list(settings.addresses().values()) == [f"http://127.0.0.1:808{n}" for n in range(3)]
    assert (settings.job_queue_size, settings.max_request_size_bytes) == (100, 6_553_500)


def test_settings_read_torchserves_keys_when_a_file_has_them(tmp_path):
    # Given
    path = write(
        tmp_path,
        "# as the docker image ships it\n"
        "inference_address=http://0.0.0.0:8080\n"
        "job_queue_size = 1000\n"
        "default_response_timeout=7\n"
        "max_request_size=123\n"
        "model_store=/srv/model-store\n"
        "decode_input_request=FALSE\n"
        "load_models=a=a.mar,\\\n  b.mar\n",
    )
    # When
    settings, unknown = load_settings(path, {}, {})
    # Then
    assert settings == Settings(
        inference_address="http://0.0.0.0:8080",
        job_queue_size=1000,
        default_response_timeout_s=7,
        max_request_size_bytes=123,
        model_store=Path("/srv/model-store"),
        decode_input_request=False,
        load_models="a=a.mar,b.mar",
    )
    assert unknown == []


def test_settings_prefer_environment_to_file_and_flags_to_both(tmp_path):
    # Given
    path = write(tmp_path, "job_queue_size=1\nnumber_of_gpu=1\nmax_image_pixels=1\n")
    environment = {"FERRY_JOB_QUEUE_SIZE": "2", "FERRY_NUMBER_OF_GPU": "2"}
    # When
    settings, _ = load_settings(path, environment, {"job_queue_size": 3, "log_level": None})
    # Then
    assert settings.job_queue_size == 3
    assert settings.number_of_gpu == 2
    assert settings.max_image_pixels == 1
    assert settings.log_level == "info"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "redis://file:6379"),
        ({"REDIS_URL": "redis://plain:6379"}, "redis://plain:6379"),
        (
            {"REDIS_URL": "redis://plain:6379", "FERRY_REDIS_URL": "redis://own:6379"},
            "redis://own:6379",
        ),
    ],
)
def test_redis_url_comes_from_the_most_specific_source(tmp_path, environment, expected):
    # Given
    path = write(tmp_path, "redis_url=redis://file:6379\n")
    # When
    settings, _ = load_settings(path, environment, {})
    # Then
    assert settings.redis_url == expected


@pytest.mark.parametrize(
    "environment",
    [
        {"FERRY_DRAIN_TIMEOUT": "60"},
        {"FERRY_DRAIN_TIMEOUT_S": "60"},
        {"FERRY_DRAIN_TIMEOUT": "7", "FERRY_DRAIN_TIMEOUT_S": "60"},
    ],
)
def test_variable_has_the_name_of_the_key_or_that_of_the_option(environment):
    # When
    settings, _ = load_settings(None, environment, {})
    # Then
    assert settings.drain_timeout_s == 60


@pytest.mark.parametrize("text", ["1", "yes", "on", "ture"])
def test_settings_refuse_a_variable_that_is_neither_true_nor_false(text):
    # When / Then: tokens would be off for who wanted them on
    with pytest.raises(SettingsError, match=f"FERRY_TOKEN_AUTH='{text}' is neither true nor false"):
        load_settings(None, {"FERRY_TOKEN_AUTH": text}, {})


def test_settings_substitute_variables_that_are_set(tmp_path):
    # Given
    path = write(tmp_path, "model_store=$$STORE$$/models\n")
    # When
    settings, _ = load_settings(path, {"STORE": "/srv"}, {})
    # Then
    assert settings.model_store == Path("/srv/models")
    with pytest.raises(SettingsError, match="STORE is not set"):
        load_settings(path, {}, {})


@pytest.mark.parametrize(
    ("key", "variable"),
    [("job_queue_size", "FERRY_JOB_QUEUE_SIZE"), ("drain_timeout", "FERRY_DRAIN_TIMEOUT_S")],
)
def test_settings_name_the_setting_when_a_value_has_the_wrong_type(tmp_path, key, variable):
    # Given
    path = write(tmp_path, f"{key}=many\n")
    # When / Then
    with pytest.raises(SettingsError, match=f"{key}='many' is no "):
        load_settings(path, {}, {})
    with pytest.raises(SettingsError, match=f"{variable}='many' is no "):
        load_settings(None, {variable: "many"}, {})


def test_settings_survive_the_way_into_a_child_process():
    # Given every kind of field away from its default
    settings = Settings(
        redis_url="unix:///tmp/r.sock",
        model_store=Path("/srv/models"),
        decode_input_request=False,
        allow_open_management=True,
        queue_timeout_s=0.5,
        number_of_gpu=0,
        load_models="a=a.mar,b.mar",
    )
    # When
    received, _ = load_settings(None, settings.to_environment(), {})
    # Then
    assert received == settings


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("log_level", "loud"),
        ("job_queue_size must be from 1 to 2147483647, not 0: requests that may wait", "0"),
        ("dead_after", "0"),
        ("default_response_timeout", "0"),
        ("drain_timeout", "inf"),
        ("queue_timeout", "0"),
        ("queue_timeout", "nan"),
        ("token_expiration_min", "99999999999"),
    ],
)
def test_settings_refuse_what_cannot_work(words, value, tmp_path):
    # Given
    path = write(tmp_path, f"{words.split()[0]}={value}\n")
    # When / Then
    with pytest.raises(SettingsError, match=f"^{words}"):
        load_settings(path, {}, {})


def documented_default(setting):
    """The default as docs/configuration.md writes it."""
    value = setting.default
    if value is None or value == "":
        return "\N{EN DASH}"
    text = str(value).lower()
    if type(value) in (int, float) and value >= 1:
        text = f"{value:,.0f}"
    return f"{text} {setting.unit}".strip()


def test_tables_of_the_document_are_those_of_the_settings():
    # Given the rows of all tables of settings, and the sections that have them
    text = (ROOT / "docs" / "configuration.md").read_text()
    tables = re.findall(r"^\| setting \| default .*\n\|-.*\n((?:\|.*\n)+)", text, re.M)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", "".join(tables), re.M))
    # Then: each has its key and its default, and the limits are all there
    assert rows == {key: documented_default(BY_KEY[key]) for key in rows}
    limits = {it.key for it in SETTINGS if it.section == "Requests and answers"}
    assert limits <= rows.keys()


def test_snapshot_brings_back_what_it_holds_and_not_what_its_server_began_with(tmp_path):
    # Given
    path = write(tmp_path, "load_models=unregistered-since.mar\nmodel_snapshot={}\n")
    # When / Then
    settings, _ = load_settings(path, {}, {})
    assert (settings.load_models, settings.snapshot_file) == ("", path)
    assert load_settings(path, {}, {"load_models": "more.mar"})[0].load_models == "more.mar"
    assert load_settings(path, {"FERRY_LOAD_MODELS": "x.mar"}, {})[0].load_models == "x.mar"


@pytest.mark.parametrize("pattern", ["https://(", "https://x/.*,[a", "*"])
def test_settings_refuse_allowed_urls_that_are_no_expressions(pattern):
    with pytest.raises(SettingsError, match=r"allowed_urls: .* commas separate"):
        load_settings(None, {"FERRY_ALLOWED_URLS": pattern}, {})


def test_settings_refuse_a_key_for_redis_without_its_certificate():
    environment = {"REDIS_URL": "rediss://r:6379", "FERRY_REDIS_KEY_FILE": "/key.pem"}
    with pytest.raises(SettingsError, match="redis_key_file needs redis_cert_file"):
        load_settings(None, environment, {})


def test_keys_without_effect_are_named_and_nothing_else(tmp_path):
    # Given a file with each ignored key, and with an unknown one
    config = tmp_path / "config.properties"
    config.write_text("".join(f"{key}=x\n" for key in (*IGNORED, "of_tomorrow")))
    # When
    settings, without_effect = load_settings(config, {}, {})
    # Then
    assert without_effect == sorted([*IGNORED, "of_tomorrow"])
    assert settings == Settings()
