"""Processes, devices, handlers. Knows nothing about HTTP.

The files, by what they are for:

    a node         node, heartbeat, reaper, undertaker, registry_keeper, host_meter, probe_files
    its workers    slots, slot, slot_record, worker_process, worker_environment, assignment
                   devices, cores, exit_status
    its disk       model_files, fetch, download, download_notes, quarantine, sweeper
                   installer, requirements
    control jobs   control_process, control_jobs
    archives       archive, archive_entries, zip_directory, manifest, model_config, doctor
    a worker       worker, handlers, torch_version, runner, rows, batch_stream
                   time_limits, failure_log, metrics_reporter
    envelopes      envelopes, open_inference, tensors
"""
