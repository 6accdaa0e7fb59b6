-- beat: the members of each set are alive now, by Redis' clock, and so are their leases.
--
-- KEYS  of each set in turn: the beats (zset), then the leases to keep alive
-- ARGV  1 ttl_ms, then of each set in turn: how many leases, how many members, the members
-- Returns, for each set, how many of its members were not known before.
--
-- PEXPIRE comes first: at maxmemory a script may go on once its first write was one that needs no
-- memory, while a plain ZADD would be refused and a living worker taken for dead.

for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local added = {}
local set, first = 1, 2
while set <= #KEYS do
  local leases, members = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
  local new = 0
  for i = first + 2, first + 1 + members do
    new = new + redis.call('ZADD', KEYS[set], now_ms, ARGV[i])
  end
  redis.call('PEXPIRE', KEYS[set], ARGV[1])
  added[#added + 1] = new
  set, first = set + 1 + leases, first + 2 + members
end
return added
