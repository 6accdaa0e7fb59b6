"""The only folder that speaks Redis. One `.lua` per verb; its header is its contract.

The files, by what they are for:

    formats        keys, open_records, scripts
    connections    connection, lost_connections, tcp_limits, redis_errors, outage, server_check
    ingresses      broker, lane, submitting, waiter, canceller, refusals, tasks
                   ingress_verbs, dedicated_connection
                   replies, reply_stream, large_reply_fetcher
    workers        worker_verbs, script_connection, bell, parked_pop, hang_up
                   large_reply_writer, metric_verbs
    nodes          node_verbs, reclaiming
    registry       registry, transactions, queue_configs, record_reader, startup_marks
                   catalog, changes
    control jobs   control_queue, downloads, rq_names
    clusters       deployments, finders, found_connections
"""
