"""Settings that concern one role only, and the sections in which a help lists them all.

Both roles accept all settings, so that one file or environment serves for both.
"""

# What most starts name, whatever their place in `Settings`.
MOST_USED = ("config", "model_store", "load_models", "port_base", "token_auth", "redis_url")
# The setting that a section begins with; it goes on, in the order of `Settings`, to the next one.
# Options that are no settings come last.
SECTIONS = {
    "redis_ca_file": "Redis",
    "inference_address": "Addresses and TLS",
    "work_dir": "Archives and models",
    "job_queue_size": "Queues and jobs",
    "default_workers_per_model": "Workers and timeouts",
    "max_request_size_bytes": "Requests and answers",
    "number_of_gpu": "Devices and handlers",
    "unregister_model_timeout_s": "Management and tokens",
    "cors_allowed_origin": "Web pages of other origins",
    "enable_metrics_api": "Metrics and logs",
    "config_snapshots": "What outlives a restart",
    "webhook_secrets": "Webhooks",
    "drain_timeout_s": "Stopping and probes",
    "log_level": "Metrics and logs",
}

OF_INGRESS = frozenset(
    {
        "access_log",
        "allow_open_management",
        "body_timeout_s",
        "certificate_file",
        "cors_allowed_headers",
        "cors_allowed_methods",
        "cors_allowed_origin",
        "default_response_timeout_s",
        "default_service_handler",
        "default_startup_timeout_s",
        "default_workers_per_model",
        "disable_token_authorization",
        "drain_delay_s",
        "enable_metrics_api",
        "enable_model_api",
        "idle_timeout_s",
        "inference_address",
        "ingress_processes",
        "job_queue_size",
        "key_file",
        "management_address",
        "max_form_parts",
        "max_header_size_bytes",
        "max_request_size_bytes",
        "metrics_address",
        "model_settings",
        "open_inference_rows",
        "page",
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
        "spare_memory_bytes",
        "unused_files_kept_s",
        "work_dir",
    }
)
# A part that runs by itself has its own log and Redis; these are for whole servers.
OF_WHOLE_SERVERS = frozenset({"config_snapshots", "data_dir", "log_files", "log_location"})
