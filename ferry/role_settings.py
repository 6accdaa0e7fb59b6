"""Settings that concern one role only; the other one's help leaves them out.

Both roles accept all settings, so that one file or environment serves for both.
"""

OF_INGRESS = frozenset(
    {
        "access_log",
        "allow_open_management",
        "bulk_max_file_size_bytes",
        "bulk_with_inference_key",
        "certificate_file",
        "cors_allowed_headers",
        "cors_allowed_methods",
        "cors_allowed_origin",
        "data_dir",
        "default_response_timeout_s",
        "default_service_handler",
        "default_startup_timeout_s",
        "default_workers_per_model",
        "disable_token_authorization",
        "drain_delay_s",
        "enable_metrics_api",
        "enable_model_api",
        "inference_address",
        "ingress_processes",
        "job_queue_size",
        "key_file",
        "management_address",
        "max_request_size_bytes",
        "metrics_address",
        "model_settings",
        "open_inference_rows",
        "path_aliases",
        "private_key_file",
        "queue_timeout_s",
        "redis_append_only",
        "snapshot_dir",
        "snapshot_file",
        "token_auth",
        "token_expiration_min",
        "unregister_model_timeout_s",
    }
)
OF_NODE = frozenset(
    {
        "allowed_urls",
        "blacklist_env_vars",
        "decode_input_request",
        "disable_system_metrics",
        "limit_max_image_pixels",
        "max_image_pixels",
        "metric_time_interval_s",
        "model_metrics_auto_detect",
        "number_of_gpu",
        "probe_dir",
        "service_envelope",
        "show_tracebacks",
        "unused_files_kept_s",
        "work_dir",
    }
)
# A part that runs by itself has its own log and Redis; these are for whole servers.
OF_WHOLE_SERVERS = frozenset({"config_snapshots", "log_files", "log_location"})
