-- living: the members of a beat set whose last beat is younger (or, on demand, older) than a limit.
--
-- KEYS  1 beats (zset)
-- ARGV  1 dead_after_ms  2 'alive' or 'dead'
-- Returns the members.

local time = redis.call('TIME')
local limit_ms = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[1]
if ARGV[2] == 'alive' then return redis.call('ZRANGEBYSCORE', KEYS[1], limit_ms, '+inf') end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', limit_ms))
