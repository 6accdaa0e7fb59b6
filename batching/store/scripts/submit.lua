-- submit: the requests wait in the queue, or each is refused with a reason. All or none at OOM.
--
-- KEYS  1 config  2 queue  3 wakeups  4 gather  5 open  6 counters  7 worker beats  8 ingress beats
--       9 reply prefix  10 more prefix  11 body prefix
-- ARGV  1 ingress id  2 dead_after_ms  3 ttl_ms: the longest of them
--       then per request, at most 2,000: id, rest of its record (records.py)
-- Returns an array, one code per request:
--        1 queued   2 known already (a re-sent submit)   0 queue full
--       -1 no such model version   -2 no live worker
--       -3 no memory: its bytes are neither in its record nor in the key of its body
--       -5 no live worker, but some whose beats are old: they died, or this clock has stepped ahead
--
-- Race closed: capacity check and push are one step, and a submit whose reply was lost may be sent
-- again without queueing twice. At maxmemory the first write (HSET) is refused before anything is
-- changed, which is what admission wants. The SET of a large body, sent in one write with this call,
-- may have been refused, too. Its arguments come in lists: a call costs more than what it does
-- (docs/adr/0013-records.md).

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local ingress_id, dead_after_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ids, names, codes, bodies, body_of = {}, {}, {}, {}, {}
for i = 4, #ARGV, 2 do
  local id, rest = ARGV[i], ARGV[i + 1]
  ids[#ids + 1] = id
  names[#names + 1] = KEYS[9] .. id
  if string.find(rest, '\n', 1, true) == #rest then
    body_of[id] = KEYS[11] .. id
    bodies[#bodies + 1] = body_of[id]
  end
end

local max_queue = tonumber(redis.call('HGET', KEYS[1], 'max_queue') or '')
if not max_queue then
  for n = 1, #ids do codes[n] = -1 end
  return codes
end
local has_worker = redis.call('ZCOUNT', KEYS[7], now_ms - dead_after_ms, '+inf') > 0
local no_worker = -2
if not has_worker then
  -- Where Redis takes no writes, it takes no beats: then that is the reason. This HDEL changes nothing.
  redis.call('HDEL', KEYS[5], '')
  if redis.call('EXISTS', KEYS[7]) == 1 then no_worker = -5 end
end
local waiting_before = redis.call('LLEN', KEYS[2])
local waiting = waiting_before

local open = redis.call('HMGET', KEYS[5], unpack(ids))
-- Mostly there are no replies, and all bodies, which one call each finds out.
local has_replies = redis.call('EXISTS', unpack(names)) > 0
local lacks_bodies = #bodies > 0 and redis.call('EXISTS', unpack(bodies)) < #bodies
local head = '0 - 0 ' .. string.format('%.0f', now_us) .. ' '
local queued, records = {}, {}
for n, id in ipairs(ids) do
  local rest = ARGV[2 * n + 3]
  if open[n] or records[id] or has_replies and redis.call('EXISTS', names[n]) > 0 then
    codes[n] = 2
  elseif not has_worker then
    codes[n] = no_worker
  elseif waiting >= max_queue then
    codes[n] = 0
  elseif lacks_bodies and body_of[id] and redis.call('EXISTS', body_of[id]) == 0 then
    codes[n] = -3
  else
    records[id] = true
    queued[#queued + 1] = id
    records[2 * #queued - 1], records[2 * #queued] = id, head .. rest
    waiting = waiting + 1
    codes[n] = 1
  end
end
if #queued == 0 then return codes end

redis.call('HSET', KEYS[5], unpack(records))
-- Requests that nobody answers expire with the last one; the TTL is seldom set, as it is generous.
if redis.call('PTTL', KEYS[5]) < ttl_ms + 60000 then redis.call('PEXPIRE', KEYS[5], ttl_ms + 120000) end
redis.call('RPUSH', KEYS[2], unpack(queued))
redis.call('HINCRBY', KEYS[6], 'accepted', #queued)
redis.call('ZADD', KEYS[8], now_ms, ingress_id)
redis.call('PEXPIRE', KEYS[8], 86400000)

wake_worker(KEYS[3], KEYS[4], KEYS[10], waiting, waiting_before == 0)
return codes
