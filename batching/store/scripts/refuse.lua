-- refuse: everything that waits is answered with a reason, because nobody will come to run it.
--
-- KEYS  1 queue  2 suspects  3 wakeups  4 open  5 counters  6 body prefix
--       7 reply prefix  8 done prefix  9 worker beats  10 job queue  11 job prefix
--       12 config
-- ARGV  1 reason  2 limit  3 reply_ttl_ms  4 dead_after_ms
-- Returns {refused, left}: left > 0 = call again. Nothing is refused while a worker lives: {0, 0}.
--
-- Used when a version is unregistered, scaled to nothing or given up: a queue without a future must
-- not keep its clients until their deadlines. Jobs wait for a worker, unless the version is gone; jobs
-- among the suspects wait to be run alone. Whether a worker might still come is decided here.

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local dead_before_ms = now_ms - ARGV[4]
local is_gone = ARGV[1] == 'unregistered'
if redis.call('ZCOUNT', KEYS[9], dead_before_ms, '+inf') > 0 then return {0, 0} end
local refused, orphaned = 0, 0
local suspects, urgent = {}, {} -- jobs
while refused + orphaned < tonumber(ARGV[2]) do
  local suspect = redis.call('LPOP', KEYS[2])
  local id = suspect or redis.call('LPOP', KEYS[1]) or is_gone and redis.call('LPOP', KEYS[10])
  if not id then break end
  local ttl_ms, ingress_id = string.match(redis.call('HGET', KEYS[4], id) or '', '^%d+ %S+ %d+ %d+ %S+ (%d+) (%S+)\n')
  if ingress_id == 'job' and is_gone then
    finish_job(KEYS[11], KEYS[4], KEYS[6] .. id, id, 'failed', id .. '!' .. ARGV[1], now_ms)
    refused = refused + 1
  elseif ingress_id == 'job' then
    table.insert(suspect and suspects or urgent, {id, tonumber(ttl_ms)})
  else
    redis.call('HDEL', KEYS[4], id)
    redis.call('DEL', KEYS[6] .. id)
  end
  if ingress_id == 'job' then
    -- has been dealt with
  elseif ingress_id then
    redis.call('SET', KEYS[7] .. id, id .. '!' .. ARGV[1], 'PX', ARGV[3])
    redis.call('RPUSH', KEYS[8] .. ingress_id, id)
    redis.call('PEXPIRE', KEYS[8] .. ingress_id, ARGV[3])
    refused = refused + 1
  else
    -- It has outlived its TTL unanswered, or is malformed.
    orphaned = orphaned + 1
  end
end
if refused > 0 then redis.call('HINCRBY', KEYS[5], 'refused', refused) end
if orphaned > 0 then redis.call('HINCRBY', KEYS[5], 'orphaned', orphaned) end
local left = redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2]) + (is_gone and redis.call('LLEN', KEYS[10]) or 0)
for _, job in ipairs(suspects) do redis.call('RPUSH', KEYS[2], job[1]) end
for n = #urgent, 1, -1 do
  local id, ttl_ms = unpack(urgent[n])
  redis.call('LPUSH', KEYS[10], id)
  if redis.call('PTTL', KEYS[10]) < ttl_ms then redis.call('PEXPIRE', KEYS[10], ttl_ms + 60000) end
end
if #urgent > 0 and redis.call('EXISTS', KEYS[12]) == 1 then redis.call('HSET', KEYS[12], 'jobs', 1) end
if left == 0 then redis.call('DEL', KEYS[3]) end
return {refused, left}
