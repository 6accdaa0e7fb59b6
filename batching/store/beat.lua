-- beat: the members are alive now, by Redis' clock, and so are their leases.
--
-- KEYS  1 beats (zset)  2.. leases to keep alive
-- ARGV  1 ttl_ms  2.. members
-- Returns how many of them were not known before.
--
-- PEXPIRE comes first: at maxmemory a script may go on once its first write was one that needs no
-- memory, while a plain ZADD would be refused and a living worker taken for dead.

for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local added = 0
for i = 2, #ARGV do added = added + redis.call('ZADD', KEYS[1], now_ms, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return added
