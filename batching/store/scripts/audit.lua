-- audit: the ingress is alive, and learns where the requests that it waits for are.
--
-- KEYS  1 ingress beats  2 open  3 reply prefix  4 chunk prefix  5 config  6 worker beats
-- ARGV  1 ingress id  2 ttl_ms  3 dead_after_ms  4.. request ids
-- Returns an array, one code per request:
--        1 open   2 replied   0 lost (Redis was emptied)   3 pieces of its answer wait
--        4 abandoned: open, but the version is unregistered and no worker of it lives
--
-- This heals an entry of the replies list that was popped into a broken connection, and notices within
-- a second that Redis lost the queue. It also finds the requests of a dead worker of an unregistered
-- version: when its node died with it, no other node may know that version.

redis.call('PEXPIRE', KEYS[1], ARGV[2])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local is_abandoned = redis.call('EXISTS', KEYS[5]) == 0
  and redis.call('ZCOUNT', KEYS[6], now_ms - ARGV[3], '+inf') == 0
local codes = {}
for i = 4, #ARGV do
  if redis.call('EXISTS', KEYS[3] .. ARGV[i]) == 1 then
    codes[i - 3] = 2
  elseif redis.call('EXISTS', KEYS[4] .. ARGV[i]) == 1 then
    codes[i - 3] = 3
  elseif redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then
    codes[i - 3] = is_abandoned and 4 or 1
  else
    codes[i - 3] = 0
  end
end
return codes
