"""The core: what a request is, how it waits, how a batch forms. No HTTP, no torch.

The files, by what they are for:

    requests       protocol, request_ids, errors, drain_rate
    batches        batcher, policy, estimate, handover
    models         model_spec, model_entry, model_config, registration, left_out_keys, installation,
                   snapshots
    who runs       status, handler_metrics, metric_lines, metrics_config
    settings       settings, settings_sources, settings_checks, config_keys
    their values   redis_url, pem_files, plain_yaml
    processes      entry_point, readiness, stop_signals, logs, child_process, daemon_thread,
                   backoff, reminder
    files          atomic_file
    Redis          store
"""
