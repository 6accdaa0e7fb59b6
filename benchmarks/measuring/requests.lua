-- POSTs the file that the first argument names, as the second says what it is. No two heads are
-- alike: each request has a traceparent, an x-request-id and a user-agent of its own, as those of
-- real clients have.
-- Ends with one line: REPORT and JSON. Answers of status 400 and more are errors, too; latencies
-- in microseconds.

local ffi = require("ffi")
local random = math.random

-- Hexadecimal digits in a piece, pieces to draw from. A head draws six, so that none comes again.
local DIGITS, PIECES = 16, 4096
local BLANK = ("?"):rep(DIGITS)

local function make_pieces()
  math.randomseed(os.time())
  local pieces = {}
  for number = 1, PIECES do
    pieces[number] = string.format("%08x%08x", random(0, 0xffffffff), random(0, 0xffffffff))
  end
  return table.concat(pieces)
end

local function places_of_blanks(text)
  local places, place = {}, text:find(BLANK, 1, true)
  while place do
    places[#places + 1] = place - 1
    place = text:find(BLANK, place + DIGITS, true)
  end
  return places
end

-- Writes the random digits into the one text of all requests: wrk copies it before it asks for the
-- next one. Joining strings would copy each body once more, and 1 MB took wrk four times as long.
local function each_with_its_own_head()
  wrk.headers["traceparent"] = "00-" .. BLANK .. BLANK .. "-" .. BLANK .. "-01"
  wrk.headers["x-request-id"] = BLANK .. BLANK
  wrk.headers["user-agent"] = "Mozilla/5.0 (X11; Linux x86_64) client/" .. BLANK
  local text = wrk.format()
  local places = places_of_blanks(text:match("^.-\r\n\r\n"))
  local to, from = ffi.cast("char *", text), ffi.new("char[?]", DIGITS * PIECES + 1, make_pieces())
  return function()
    for number = 1, #places do
      ffi.copy(to + places[number], from + DIGITS * random(0, PIECES - 1), DIGITS)
    end
    return text
  end
end

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.headers["Content-Type"] = args[2]
  wrk.body = file:read("*a")
  file:close()
  -- The name by which wrk asks for each request.
  request = each_with_its_own_head()
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'REPORT {"requests": %d, "duration_us": %d, "bytes_read": %d, "p50_us": %d, "p99_us": %d, '
      .. '"errors": %d}\n',
    summary.requests, summary.duration, summary.bytes,
    latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
