-- reclaim: the requests of a dead or leaving worker wait again, or are answered for good.
--
-- KEYS  1 lease  2 worker beats  3 workers  4 queue  5 suspects  6 wakeups  7 open
--       8 counters  9 body prefix  10 reply prefix  11 done prefix  12 gather  13 config
--       14 job queue  15 job prefix
-- ARGV  1 worker id  2 mode: 'dead' = only if its last beat is older than dead_after_ms,
--         'crashed' = its node saw it die, 'released' = it leaves in good order,
--         'recovered' = it lives on, but the answer to its claim was lost
--       3 dead_after_ms  4 max_attempts  5 reason when no attempt is left
--       6 limit  7 reply_ttl_ms
-- Returns {-1} when the worker is alive, else {reclaimed, answered, left}: left > 0 = call again.
--
-- Races closed: whether it is dead is decided here, not by the caller's older reading; only what is
-- in this worker's lease, in the attempt that it is in, is touched; the worker is forgotten last, so
-- a caller that dies on the way leaves the rest to the next one. A crash suspect is retried alone and
-- its record says who had it, so that a late reply before the next claim still counts. A released
-- request goes back to the head of the queue in its old order, without having used an attempt; so
-- does a recovered one, whose worker never learnt that it owned it. An answer of which pieces have
-- been sent is never begun again: its client would see them twice. A list or hash that this makes for a
-- version that was unregistered meanwhile gets a TTL: nodes delete it, but this may be the last node.

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local worker_id, mode, limit = ARGV[1], ARGV[2], tonumber(ARGV[6])
local is_untried = mode == 'released' or mode == 'recovered'
if mode == 'dead' then
  local beat_ms = redis.call('ZSCORE', KEYS[2], worker_id)
  if beat_ms and tonumber(beat_ms) >= now_ms - tonumber(ARGV[3]) then return {-1} end
end

local reclaimed, answered, orphaned = 0, 0, 0
local has_jobs = false

local function answer(id, ingress_id, reply)
  answered = answered + 1
  if ingress_id == 'job' then
    local status = reply == '!deadline_exceeded' and 'expired' or 'failed'
    finish_job(KEYS[15], KEYS[7], KEYS[9] .. id, id, status, id .. reply, now_ms)
    return
  end
  redis.call('HDEL', KEYS[7], id)
  redis.call('DEL', KEYS[9] .. id)
  redis.call('SET', KEYS[10] .. id, id .. reply, 'PX', ARGV[7])
  redis.call('RPUSH', KEYS[11] .. ingress_id, id)
  redis.call('PEXPIRE', KEYS[11] .. ingress_id, ARGV[7])
end

-- Deletes the fields of a job's attempt.
local function unstart(id)
  redis.call('HDEL', KEYS[15] .. id, 'started_ms', 'worker', 'progress')
end

for _ = 1, limit do
  -- Released requests go to the head of the queue, so the newest is moved first.
  local entry = redis.call(is_untried and 'RPOP' or 'LPOP', KEYS[1])
  if not entry then break end
  local id, attempt = string.match(entry, '^(.*):(%d+)$')
  local record = id and redis.call('HGET', KEYS[7], id) or ''
  local attempts, chunks, rest, queued_us, ttl_ms, ingress_id =
    string.match(record, '^(%d%d?%d?) %S+ (%d+) ((%d+) %S+ (%d+) (%S+)\n.*)$')
  if not ingress_id then
    -- It has outlived its TTL unanswered, or is malformed.
    if id then redis.call('HDEL', KEYS[7], id) end
    orphaned = orphaned + 1
  elseif attempts + 1 ~= tonumber(attempt) then
    -- The request is another worker's by now. The entry is garbage: our scripts leave none like it.
  elseif chunks ~= '0' then
    answer(id, ingress_id, '!' .. ARGV[5])
  elseif queued_us / 1000 + ttl_ms <= now_ms then
    answer(id, ingress_id, '!deadline_exceeded')
  elseif is_untried then
    -- Its record still counts the attempts before this one, and names no owner since the claim.
    local is_job = ingress_id == 'job'
    local is_first = not is_job or redis.call('HGET', KEYS[15] .. id, 'priority') == 'high'
    local own = is_first and KEYS[4] or KEYS[14]
    redis.call('LPUSH', attempt ~= '1' and KEYS[5] or own, id)
    if is_job then unstart(id) end
    if own ~= KEYS[4] and redis.call('PTTL', own) < tonumber(ttl_ms) then redis.call('PEXPIRE', own, ttl_ms + 60000) end
    has_jobs = has_jobs or is_job
    reclaimed = reclaimed + 1
  elseif tonumber(attempt) >= tonumber(ARGV[4]) then
    answer(id, ingress_id, '!' .. ARGV[5])
  else
    redis.call('HSET', KEYS[7], id, attempt .. ' ' .. worker_id .. ' 0 ' .. rest)
    redis.call('RPUSH', KEYS[5], id)
    if ingress_id == 'job' then unstart(id) end
    reclaimed = reclaimed + 1
  end
end

local left = redis.call('LLEN', KEYS[1])
if reclaimed > 0 then
  redis.call('HINCRBY', KEYS[8], is_untried and 'released' or 'reclaimed', reclaimed)
  redis.call('RPUSH', KEYS[6], '1')
  redis.call('PEXPIRE', KEYS[6], 60000)
end
if answered > 0 then redis.call('HINCRBY', KEYS[8], 'failed', answered) end
if orphaned > 0 then redis.call('HINCRBY', KEYS[8], 'orphaned', orphaned) end
local is_registered = reclaimed + answered + orphaned == 0 or redis.call('EXISTS', KEYS[13]) == 1
if has_jobs and is_registered then redis.call('HSET', KEYS[13], 'jobs', 1) end
if not is_registered then
  for _, name in ipairs({KEYS[4], KEYS[5], KEYS[8]}) do redis.call('PEXPIRE', name, 86400000) end
end
if left == 0 and mode ~= 'recovered' then
  -- Any worker may now collect the batch that it was collecting.
  if redis.call('HGET', KEYS[12], 'worker') == worker_id then
    redis.call('DEL', KEYS[12])
    if redis.call('LLEN', KEYS[4]) > 0 then
      redis.call('RPUSH', KEYS[6], '1')
      redis.call('PEXPIRE', KEYS[6], 60000)
    end
  end
  redis.call('ZREM', KEYS[2], worker_id)
  redis.call('HDEL', KEYS[3], worker_id)
end
return {reclaimed, answered, left}
