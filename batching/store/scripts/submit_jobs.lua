-- submit_jobs: jobs wait for a worker, whether one lives or not.
--
-- KEYS  1 config  2 queue  3 wakeups  4 gather  5 open  6 counters  7 more prefix  8 body prefix
--       9 job queue  10 job prefix  11 job index
-- ARGV  1 limit: jobs of this version that may wait, urgent ones apart, which count as requests
--       then per job, at most 500: id, rest of its record (records.py), ttl_ms: from now to its
--       deadline, keep_ms: how long it is kept afterwards, 'high' or 'normal', and protocol,
--       webhook and webhook_start, each empty or the job's field (job_records.py)
-- Returns now_ms, then per job a code and how many waited before it:
--          1 queued   2 known already (a re-sent submit)   0 too many wait
--         -1 no such version   -3 no memory, for the job or for its large body
--
-- Races closed: as in submit. A job exists with its record, or not at all; the stored body of a refused
-- job is deleted in the same step, unless another submit of the same id was accepted meanwhile. The index
-- lists the jobs; each submit deletes a few entries whose jobs are gone, so that they do not add up.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local limit = tonumber(ARGV[1])
local max_queue = tonumber(redis.call('HGET', KEYS[1], 'max_queue') or '')
local queues = {high = KEYS[2], normal = KEYS[9]}
local waiting = {}
for priority, queue in pairs(queues) do waiting[priority] = redis.call('LLEN', queue) end
local was_empty = waiting.high + waiting.normal == 0
local accepted, longest_ms = 0, 0
local answer = {now_ms}

local function submit(id, rest, ttl_ms, keep_ms, priority, protocol, webhook, webhook_start)
  local name, body = KEYS[10] .. id, KEYS[8] .. id
  local is_high, before = priority == 'high', waiting[priority]
  local code
  if redis.call('EXISTS', name) == 1 then return 2, 0
  elseif not max_queue then code = -1
  elseif string.find(rest, '\n', 1, true) == #rest and redis.call('EXISTS', body) == 0 then code = -3
  elseif before >= (is_high and max_queue or limit) then code = 0
  elseif not push_job(KEYS[1], KEYS[5], queues[priority], is_high, id, rest, ttl_ms, now_us) then code = -3
  end
  if code then
    redis.call('DEL', body)
    return code, 0
  end

  redis.call('HSET', name, 'created_ms', now_ms, 'queued_ms', now_ms, 'ttl_ms', ttl_ms, 'keep_ms', keep_ms)
  if is_high then redis.call('HSET', name, 'priority', priority) end
  if protocol ~= '' then redis.call('HSET', name, 'protocol', protocol) end
  if webhook ~= '' then redis.call('HSET', name, 'webhook', webhook, 'webhook_status', 'pending') end
  if webhook_start ~= '' then redis.call('HSET', name, 'webhook_start', webhook_start) end
  redis.call('PEXPIRE', name, ttl_ms + keep_ms + 60000)
  redis.call('PEXPIRE', body, ttl_ms + keep_ms + 60000)
  redis.call('ZADD', KEYS[11], now_us + accepted, id) -- pages of the list end between two times
  longest_ms = math.max(longest_ms, ttl_ms + keep_ms)
  accepted = accepted + 1
  waiting[priority] = before + 1
  return 1, before
end

for i = 2, #ARGV, 8 do
  local rest, ttl_ms, keep_ms = ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  answer[#answer + 1], answer[#answer + 2] =
    submit(ARGV[i], rest, ttl_ms, keep_ms, ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], ARGV[i + 7])
end
if accepted == 0 then return answer end

if redis.call('PTTL', KEYS[11]) < longest_ms then redis.call('PEXPIRE', KEYS[11], longest_ms + 60000) end
for _, old in ipairs(redis.call('ZRANGE', KEYS[11], 0, accepted)) do
  if redis.call('EXISTS', KEYS[10] .. old) == 0 then redis.call('ZREM', KEYS[11], old) end
end
redis.call('HINCRBY', KEYS[6], 'accepted', accepted)
-- Urgent jobs have the requests' window, which the others do not end.
wake_worker(KEYS[3], KEYS[4], KEYS[7], waiting.high > 0 and waiting.high or waiting.normal, was_empty)
return answer
