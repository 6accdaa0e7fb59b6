"""The two lists of configuration keys: what has an effect here, and what has none."""

from batching.settings.loading import load_settings
from batching.settings.settings import Settings
from batching.settings.sources import OWN_SWITCHES
from batching.settings.torchserve_keys import IGNORED, UNDERSTOOD

# Source: TorchServe 0.12 docs/configuration.md and ConfigManager.
TORCHSERVE = """
    inference_address management_address metrics_address grpc_inference_address
    grpc_management_address grpc_inference_port grpc_management_port
    grpc_inference_max_connection_age_ms grpc_management_max_connection_age_ms
    grpc_inference_max_connection_age_grace_ms grpc_management_max_connection_age_grace_ms
    enable_grpc_ssl model_store workflow_store load_models models model_snapshot
    default_workers_per_model default_response_timeout default_startup_timeout
    unregister_model_timeout job_queue_size number_of_netty_threads netty_client_threads
    number_of_gpu max_request_size max_response_size limit_max_image_pixels decode_input_request
    service_envelope default_service_handler allowed_urls use_env_allowed_urls
    install_py_dep_per_model blacklist_env_vars enable_envvars_config enable_model_api
    disable_token_authorization token_expiration_min enable_metrics_api metrics_mode
    metrics_config model_metrics_auto_detect disable_system_metrics system_metrics_cmd
    metric_time_interval async_logging cors_allowed_origin cors_allowed_methods
    cors_allowed_headers keystore keystore_pass keystore_type certificate_file private_key_file
    initial_worker_port initial_distribution_port cpu_launcher_enable cpu_launcher_args
    ipex_enable ipex_gpu_enable cpp_log_config model_server_home prefer_direct_buffer
    use_native_io io_ratio ts_open_inference_protocol ts_header_key_sequence_id
    ts_header_key_sequence_start ts_header_key_sequence_end plugins_path vmargs debug
"""
TORCHSERVE_KEYS = TORCHSERVE.split()


def test_every_key_of_torchserve_is_understood_or_declared_to_have_no_effect():
    assert set(TORCHSERVE_KEYS) <= UNDERSTOOD | set(IGNORED)


def test_no_key_is_in_both_lists():
    assert not UNDERSTOOD & set(IGNORED)


def test_a_key_is_ignored_only_if_torchserve_has_it():
    assert set(IGNORED) <= set(TORCHSERVE_KEYS)


def test_every_torchserve_key_in_a_file_is_read_without_an_error(tmp_path):
    # Given a file with each ignored key, and with unknown ones
    config = tmp_path / "config.properties"
    config.write_text("".join(f"{key}=x\n" for key in (*IGNORED, "of_tomorrow")))
    # When
    settings, without_effect = load_settings(config, {}, {})
    # Then
    assert without_effect == sorted([*IGNORED, "of_tomorrow"])
    assert settings == Settings()


def test_own_switches_are_those_that_torchserve_does_not_have():
    switches = {key for key, spec in Settings.fields_by_key().items() if spec.type is bool}
    assert switches - set(TORCHSERVE_KEYS) == OWN_SWITCHES
