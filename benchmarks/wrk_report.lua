-- POSTs a body of as many bytes as the first argument says; ends with one line: REPORT and JSON.
-- `status_errors` are answers of status 400 and more; latencies are in microseconds.

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/octet-stream"
  wrk.body = string.rep("x", tonumber(args[1]))
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'REPORT {"requests": %d, "duration_us": %d, "bytes_read": %d, "p50_us": %d, "p99_us": %d, '
      .. '"connect_errors": %d, "read_errors": %d, "write_errors": %d, '
      .. '"status_errors": %d, "timeouts": %d}\n',
    summary.requests, summary.duration, summary.bytes,
    latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
