-- POSTs the file that the first argument names, as the second says what it is; ends with one line:
-- REPORT and JSON. `status_errors` are answers of status 400 and more; latencies in microseconds.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.headers["Content-Type"] = args[2]
  wrk.body = file:read("*a")
  file:close()
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
