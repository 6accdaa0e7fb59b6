"""HTTP in, HTTP out. Knows TorchServe's REST dialect, nothing about devices.

The files, by what they are for:

    the process    server, services, role, health, startup_models, snapshot_writer
                   file_watcher
    HTTP/1.1       listeners, certificate, http_host, http_connection, request_parser, http_head
                   known_heads, exchange, body_reader, chunk_writer
    who may pass   edge, auth, key_file
    predictions    front, prediction_paths, payload, predictor, answers, failed_requests
                   streamed_answer, stream_sender
    the rest       wsgi_bridge, app, error_handlers, responses
                   inference_api, open_inference_api, management_api, metrics_api, token_api
                   openapi, descriptions
    registering    registrar, worker_wait
    metrics        metrics, tally, histogram, torchserve_metrics, queue_metrics, handler_metrics
                   metrics_text, series_sweeper
"""
