-- submit_job: one job waits, for as long as it takes, whether a worker lives or not.
--
-- KEYS  1 config  2 queue  3 wakeups  4 gather  5 open  6 counters  7 more prefix  8 body prefix
--       9 job queue  10 job prefix  11 job index  12 suspects
-- ARGV  1 id  2 rest of its record (open_records.py)  3 ttl_ms: from now to its deadline
--       4 keep_ms: for so long it is kept afterwards  5 priority: 'high' or 'normal'
--       6 limit: jobs of this version that may wait, urgent ones apart, which count
--       as requests  7 mode: 'new', or 'again' for one that is kept
-- Returns 1 queued   2 known already (a re-sent submit)   0 too many wait
--         -1 no such version   -3 no memory for its large body
--        -7 not one that can be tried again (unknown, not failed, or its input is gone)
--
-- Races closed: as in submit. A job is there whole, with its record, or not at all; the body that was
-- stored for one that is refused goes in the same step, unless another submit of the same id brought it
-- in meanwhile. What jobs there are, is known by the index; each submit deletes a few entries whose jobs
-- have gone, so that they do not add up.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local id, rest, ttl_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local name, body = KEYS[10] .. id, KEYS[8] .. id
local is_again, is_high = ARGV[7] == 'again', ARGV[5] == 'high'

local function refused(code)
  if redis.call('EXISTS', name) == 0 then redis.call('DEL', body) end
  return {code}
end

local max_queue = redis.call('HGET', KEYS[1], 'max_queue')
if not max_queue then return refused(-1) end
if is_again then
  local record = redis.call('HGET', KEYS[5], id)
  local queued_us, old_ttl_ms = string.match(record or '', '^%d+ %S+ %d+ (%d+) %S+ (%d+) ')
  if queued_us and queued_us / 1000 + old_ttl_ms <= now_ms then
    -- It has expired, and no worker has come to find that.
    local places = redis.call('LREM', KEYS[9], 1, id) + redis.call('LREM', KEYS[2], 1, id) + redis.call('LREM', KEYS[12], 1, id)
    if places > 0 then
      finish_job(KEYS[10], KEYS[5], body, id, 'expired', id .. '!deadline_exceeded', now_ms)
      redis.call('HINCRBY', KEYS[6], 'expired', 1)
    end
  end
  local known = redis.call('HMGET', name, 'status', 'input', 'keep_ms', 'ttl_ms', 'priority')
  if not known[2] or known[1] == 'succeeded' then return {-7} end
  if known[2] == '' and redis.call('EXISTS', body) == 0 then return {-7} end
  keep_ms, ttl_ms, is_high = tonumber(known[3]), tonumber(known[4]), known[5] == 'high'
  rest = '0 ' .. known[4] .. ' job\n' .. known[2]
else
  if redis.call('EXISTS', name) == 1 then return {2} end
  if string.find(rest, '\n', 1, true) == #rest and redis.call('EXISTS', body) == 0 then return {-3} end
end
local before = redis.call('LLEN', is_high and KEYS[2] or KEYS[9])
if before >= tonumber(is_high and max_queue or ARGV[6]) then return refused(0) end

local stored = redis.pcall('HSET', KEYS[5], id, '0 - 0 ' .. string.format('%.0f', now_us) .. ' ' .. rest)
if type(stored) == 'table' then return refused(-3) end -- at maxmemory
if redis.call('PTTL', KEYS[5]) < ttl_ms + 60000 then redis.call('PEXPIRE', KEYS[5], ttl_ms + 120000) end
if is_again then
  redis.call('HDEL', name, 'status', 'finished_ms', 'result', 'input', 'started_ms', 'attempts', 'worker', 'progress', 'piece_bytes')
  redis.call('HSET', name, 'queued_ms', now_ms)
else
  redis.call('HSET', name, 'created_ms', now_ms, 'queued_ms', now_ms, 'ttl_ms', ttl_ms, 'keep_ms', keep_ms)
  if is_high then redis.call('HSET', name, 'priority', 'high') end
  redis.call('ZADD', KEYS[11], now_us, id)
end
redis.call('PEXPIRE', name, ttl_ms + keep_ms + 60000)
redis.call('PEXPIRE', body, ttl_ms + keep_ms + 60000)
if redis.call('PTTL', KEYS[11]) < ttl_ms + keep_ms then redis.call('PEXPIRE', KEYS[11], ttl_ms + keep_ms + 60000) end
for _, old in ipairs(redis.call('ZRANGE', KEYS[11], 0, 1)) do
  if redis.call('EXISTS', KEYS[10] .. old) == 0 then redis.call('ZREM', KEYS[11], old) end
end

local waiting_before = redis.call('LLEN', KEYS[2]) + redis.call('LLEN', KEYS[9])
redis.call('RPUSH', is_high and KEYS[2] or KEYS[9], id)
if not is_high and redis.call('PTTL', KEYS[9]) < ttl_ms + 60000 then redis.call('PEXPIRE', KEYS[9], ttl_ms + 120000) end
redis.call('HINCRBY', KEYS[6], 'accepted', 1)

-- As in submit. Requests that wait have a window of their own, which jobs do not end.
local collector = redis.call('HMGET', KEYS[4], 'worker', 'limit')
if collector[1] then
  local more_key = KEYS[7] .. collector[1]
  local requests = redis.call('LLEN', KEYS[2])
  local waiting = requests > 0 and requests or redis.call('LLEN', KEYS[9])
  if waiting >= tonumber(collector[2]) and redis.call('LLEN', more_key) == 0 then
    redis.call('RPUSH', more_key, '1')
    redis.call('PEXPIRE', more_key, 60000)
  end
elseif waiting_before == 0 and redis.call('LLEN', KEYS[3]) == 0 then
  redis.call('RPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], 60000)
end
return {1, now_ms, before}
