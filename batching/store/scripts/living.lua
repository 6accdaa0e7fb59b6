-- living: the members of beat sets whose last beat is younger (or, on demand, older) than a limit.
--
-- KEYS  beats (zset), one or several
-- ARGV  1 dead_after_ms  2 'alive' or 'dead'
-- Returns the members of each set.

local time = redis.call('TIME')
local limit_ms = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[1]
local from, to = limit_ms, '+inf'
if ARGV[2] == 'dead' then from, to = '-inf', '(' .. string.format('%.0f', limit_ms) end
local members = {}
for i = 1, #KEYS do members[i] = redis.call('ZRANGEBYSCORE', KEYS[i], from, to) end
return members
