-- retry_job: a job that did not succeed waits again, with all of its attempts and time.
--
-- KEYS  1 config  2 queue  3 wakeups  4 gather  5 open  6 counters  7 more prefix  8 body prefix
--       9 job queue  10 job prefix  11 job index  12 suspects
--       13 large reply prefix
-- ARGV  1 id  2 limit: jobs of this version that may wait, urgent ones apart, which count as requests
-- Returns 1 queued   0 too many wait   -1 no such version   -3 no memory
--         -7 it cannot be tried again (unknown, not ended, succeeded, or its input is gone)
--
-- Race closed: of two retries, the second finds that the job waits. A refused job is unchanged.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local id, name, body = ARGV[1], KEYS[10] .. ARGV[1], KEYS[8] .. ARGV[1]
local max_queue = redis.call('HGET', KEYS[1], 'max_queue')
if not max_queue then return -1 end

local record = redis.call('HGET', KEYS[5], id)
local queued_us, old_ttl_ms = string.match(record or '', '^%d+ %S+ %d+ (%d+) %S+ (%d+) ')
if queued_us and queued_us / 1000 + old_ttl_ms <= now_ms then
  -- It has expired, and no worker has come to notice that.
  local places = redis.call('LREM', KEYS[9], 1, id) + redis.call('LREM', KEYS[2], 1, id) + redis.call('LREM', KEYS[12], 1, id)
  if places > 0 then
    finish_job(KEYS[10], KEYS[5], body, id, 'expired', id .. '!deadline_exceeded', now_ms)
    redis.call('HINCRBY', KEYS[6], 'expired', 1)
  end
end
local known = redis.call('HMGET', name, 'status', 'input', 'keep_ms', 'ttl_ms', 'priority')
local input, keep_ms, ttl_ms, is_high = known[2], tonumber(known[3]), tonumber(known[4]), known[5] == 'high'
if not input or known[1] == 'succeeded' or input == '' and redis.call('EXISTS', body) == 0 then return -7 end

local queue = is_high and KEYS[2] or KEYS[9]
local was_empty = redis.call('LLEN', KEYS[2]) + redis.call('LLEN', KEYS[9]) == 0
if redis.call('LLEN', queue) >= tonumber(is_high and max_queue or ARGV[2]) then return 0 end
local rest = '0 ' .. known[4] .. ' job\n' .. input
if not push_job(KEYS[1], KEYS[5], queue, is_high, id, rest, ttl_ms, now_us) then return -3 end
drop_large_result(KEYS[13], id, redis.call('HGET', name, 'result'))
redis.call('HDEL', name, 'status', 'finished_ms', 'result', 'input', 'started_ms', 'attempts', 'worker', 'progress')
redis.call('HSET', name, 'queued_ms', now_ms)
redis.call('PEXPIRE', name, ttl_ms + keep_ms + 60000)
redis.call('PEXPIRE', body, ttl_ms + keep_ms + 60000)
if redis.call('PTTL', KEYS[11]) < ttl_ms + keep_ms then redis.call('PEXPIRE', KEYS[11], ttl_ms + keep_ms + 60000) end
redis.call('HINCRBY', KEYS[6], 'accepted', 1)
local requests = redis.call('LLEN', KEYS[2])
wake_worker(KEYS[3], KEYS[4], KEYS[7], requests > 0 and requests or redis.call('LLEN', KEYS[9]), was_empty)
return 1
