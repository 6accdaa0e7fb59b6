-- beat: the members of each set are alive now, by Redis' clock, and so are their leases; a wakeup that
-- was lost while requests wait is pushed again, and ingresses that have gone are forgotten.
--
-- KEYS  of each set in turn: the beats (zset), the leases to keep alive, and after leases the
--       version's queue, suspects, wakeups, ingress beats and job queue
-- ARGV  1 ttl_ms  2 quiet_ms, then of each set in turn: how many leases, how many members, the members
-- Returns {{silent_ms, ...}, added, added, ...}: the silences of quiet_ms or longer, over all sets, and
-- for each set how many of its members were not known before.
--
-- PEXPIRE comes first: at maxmemory a script may go on once its first write was one that needs no
-- memory, while a plain ZADD would be refused and a living worker taken for dead.

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local silent_ms, added = {}, {}
local set, first = 1, 3
while set <= #KEYS do
  local beats, leases, members = KEYS[set], tonumber(ARGV[first]), tonumber(ARGV[first + 1])
  for i = set, set + leases do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
  local new = 0
  for i = first + 2, first + 1 + members do new = new + redis.call('ZADD', beats, now_ms, ARGV[i]) end
  if new > 0 then redis.call('PEXPIRE', beats, ARGV[1]) end
  local quiet = redis.call('ZRANGEBYSCORE', beats, '-inf', now_ms - ARGV[2], 'WITHSCORES')
  for i = 2, #quiet, 2 do silent_ms[#silent_ms + 1] = now_ms - tonumber(quiet[i]) end
  added[#added + 1] = new
  set, first = set + 1 + leases, first + 2 + members
  if leases > 0 then
    local wakeups = KEYS[set + 2]
    local waiting = redis.call('LLEN', KEYS[set]) + redis.call('LLEN', KEYS[set + 1]) + redis.call('LLEN', KEYS[set + 4])
    if waiting > 0 and redis.call('LLEN', wakeups) == 0 then
      redis.call('RPUSH', wakeups, '1')
      redis.call('PEXPIRE', wakeups, 60000)
    end
    -- No living ingress is silent for a minute.
    redis.call('ZREMRANGEBYSCORE', KEYS[set + 3], '-inf', now_ms - 60000)
    set = set + 5
  end
end
return {silent_ms, unpack(added)}
