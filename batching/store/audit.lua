-- audit: the ingress is alive, and learns where the requests that it waits for are.
--
-- KEYS  1 ingress beats  2 open  3 reply prefix  4 chunk prefix
-- ARGV  1 ingress id  2 ttl_ms  3.. request ids
-- Returns an array, one code per request:
--        1 open   2 replied   0 lost (Redis was emptied)   3 pieces of its answer wait
--
-- This is what heals a doorbell that was popped into a broken connection, and what notices within a
-- second that Redis lost the queue.

redis.call('PEXPIRE', KEYS[1], ARGV[2])
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local codes = {}
for i = 3, #ARGV do
  if redis.call('EXISTS', KEYS[3] .. ARGV[i]) == 1 then
    codes[i - 2] = 2
  elseif redis.call('EXISTS', KEYS[4] .. ARGV[i]) == 1 then
    codes[i - 2] = 3
  else
    codes[i - 2] = redis.call('HEXISTS', KEYS[2], ARGV[i])
  end
end
return codes
