-- refuse: everything that waits is answered with a reason, because nobody will come to run it.
--
-- KEYS  1 queue  2 solo  3 bell  4 open  5 counters  6 request prefix  7 body prefix
--       8 reply prefix  9 done prefix  10 worker beats
-- ARGV  1 reason  2 limit  3 reply_ttl_ms  4 dead_after_ms
-- Returns {refused, left}: left > 0 = call again. Nothing is refused while a worker lives: {0, 0}.
--
-- Used when a version is unregistered, scaled to nothing or given up: a queue without a future must
-- not keep its clients until their deadlines. Whether somebody might come after all is decided here.

local time = redis.call('TIME')
local dead_before_ms = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[4]
if redis.call('ZCOUNT', KEYS[10], dead_before_ms, '+inf') > 0 then return {0, 0} end
local refused, orphaned = 0, 0
for _ = 1, tonumber(ARGV[2]) do
  local id = redis.call('LPOP', KEYS[2]) or redis.call('LPOP', KEYS[1])
  if not id then break end
  local fields = redis.call('HMGET', KEYS[6] .. id, 'state', 'ingress')
  if fields[1] == 'Q' then
    redis.call('DEL', KEYS[6] .. id, KEYS[7] .. id)
    redis.call('SET', KEYS[8] .. id, id .. '!' .. ARGV[1], 'PX', ARGV[3])
    redis.call('RPUSH', KEYS[9] .. fields[2], id)
    redis.call('PEXPIRE', KEYS[9] .. fields[2], ARGV[3])
    redis.call('SREM', KEYS[4], id)
    refused = refused + 1
  elseif not fields[1] then
    -- It has outlived its TTL unanswered.
    orphaned = orphaned + redis.call('SREM', KEYS[4], id)
  end
end
if refused > 0 then redis.call('HINCRBY', KEYS[5], 'refused', refused) end
if orphaned > 0 then redis.call('HINCRBY', KEYS[5], 'orphaned', orphaned) end
local left = redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2])
if left == 0 then redis.call('DEL', KEYS[3]) end
return {refused, left}
