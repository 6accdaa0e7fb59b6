"""Settings: sources, precedence, spelling and the way into a child process."""

from pathlib import Path

import pytest

from batching.settings.loading import load_settings
from batching.settings.settings import Settings, SettingsError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.properties"
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_are_torchserves_defaults_when_nobody_says_anything():
    # Given no file, no variable and no flag
    # When
    settings, unknown = load_settings(None, {}, {})
    # Then
    assert settings == Settings()
    assert unknown == []
    assert settings.inference_address == "http://127.0.0.1:8080"
    assert settings.management_address == "http://127.0.0.1:8081"
    assert settings.metrics_address == "http://127.0.0.1:8082"
    assert settings.job_queue_size == 100
    assert settings.max_request_size_bytes == 6_553_500


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
    assert settings.inference_address == "http://0.0.0.0:8080"
    assert settings.job_queue_size == 1000
    assert settings.default_response_timeout_s == 7
    assert settings.max_request_size_bytes == 123
    assert settings.model_store == Path("/srv/model-store")
    assert settings.decode_input_request is False
    assert settings.load_models == "a=a.mar,b.mar"
    assert unknown == []


def test_settings_name_each_unknown_key_and_keep_the_rest(tmp_path):
    # Given
    path = write(tmp_path, "vmargs=-Xmx4g\nnumber_of_netty_threads=32\njob_queue_size=3\n")
    # When
    settings, unknown = load_settings(path, {}, {})
    # Then
    assert unknown == ["number_of_netty_threads", "vmargs"]
    assert settings.job_queue_size == 3


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


def test_settings_take_a_truth_in_any_case():
    # When
    environment = {"FERRY_TOKEN_AUTH": "True", "FERRY_ENABLE_MODEL_API": "FALSE"}
    settings, _ = load_settings(None, environment, {})
    # Then
    assert (settings.token_auth, settings.enable_model_api) == (True, False)


def test_settings_substitute_variables_when_a_value_names_them(tmp_path):
    # Given
    path = write(tmp_path, "model_store=$$STORE$$/models\n")
    # When
    settings, _ = load_settings(path, {"STORE": "/srv"}, {})
    # Then
    assert settings.model_store == Path("/srv/models")


def test_settings_refuse_a_substitution_when_the_variable_is_not_set(tmp_path):
    # Given
    path = write(tmp_path, "model_store=$$STORE$$/models\n")
    # When / Then
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
    ("key", "value"),
    [
        ("log_level", "loud"),
        ("job_queue_size", "0"),
        ("dead_after", "0"),
        ("default_response_timeout", "0"),
        ("drain_timeout", "inf"),
        ("queue_timeout", "0"),
        ("queue_timeout", "nan"),
        ("token_expiration_min", "99999999999"),
    ],
)
def test_settings_refuse_what_cannot_work(key, value, tmp_path):
    # Given
    path = tmp_path / "config.properties"
    path.write_text(f"{key}={value}\n")
    # When / Then
    with pytest.raises(SettingsError, match=f"^{key}"):
        load_settings(path, {}, {})


def test_snapshot_brings_back_what_it_holds_and_not_what_its_server_began_with(tmp_path):
    # Given
    text = "load_models=unregistered-since.mar\nmodel_snapshot={}\n"
    path = write(tmp_path, text)
    # When / Then
    assert load_settings(path, {}, {})[0].load_models == ""
    assert load_settings(path, {}, {"load_models": "more.mar"})[0].load_models == "more.mar"
    assert load_settings(path, {"FERRY_LOAD_MODELS": "x.mar"}, {})[0].load_models == "x.mar"


def test_settings_take_a_part_of_a_minute_for_the_life_of_keys(tmp_path):
    # TorchServe's own tests of expired keys do not wait for a minute.
    path = write(tmp_path, "token_expiration_min=0.25\n")
    assert load_settings(path, {}, {})[0].token_expiration_min == 0.25


def test_settings_say_which_numbers_can_work():
    text = (
        "job_queue_size must be from 1 to 2147483647, not 0: "
        "requests that may wait per model version"
    )
    with pytest.raises(SettingsError, match=f"^{text}$"):
        load_settings(None, {"FERRY_JOB_QUEUE_SIZE": "0"}, {})


@pytest.mark.parametrize("pattern", ["https://(", "https://x/.*,[a", "*"])
def test_settings_refuse_allowed_urls_that_are_no_expressions(pattern):
    with pytest.raises(SettingsError, match=r"allowed_urls: .* commas separate"):
        load_settings(None, {"FERRY_ALLOWED_URLS": pattern}, {})


def test_settings_refuse_tls_files_for_a_connection_without_tls():
    environment = {"REDIS_URL": "redis://r:6379", "FERRY_REDIS_CA_FILE": "/ca.pem"}
    with pytest.raises(SettingsError, match="rediss://"):
        load_settings(None, environment, {})


def test_settings_refuse_a_key_for_redis_without_its_certificate():
    environment = {"REDIS_URL": "rediss://r:6379", "FERRY_REDIS_KEY_FILE": "/key.pem"}
    with pytest.raises(SettingsError, match="redis_key_file needs redis_cert_file"):
        load_settings(None, environment, {})
