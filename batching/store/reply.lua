-- reply: each answer is stored for its ingress and the ownership ends, once.
--
-- KEYS  1 lease of this worker  2 open  3 counters  4 request prefix  5 body prefix
--       6 reply prefix  7 large reply prefix  8 done prefix  9 idle (only with job tickets)
-- ARGV  1 worker id  2 reply_ttl_ms  then per request: id, attempt, reply bytes ('@' = in its own key)
-- Returns an array, one code per request:
--        1 stored   0 nobody waits (cancelled, or collected already)   2 stored before   3 stale
--
-- Races closed: whoever flips the request first wins (reply, cancel or reclaim), so two replies can
-- never be published; a worker that was taken for dead is told so (stale) once its request has a new
-- owner, while its late answer is still welcome before that. The first write frees memory, so it
-- works at maxmemory. A reply whose acknowledgement was lost may be sent again. With job tickets the
-- worker is idle when its answer can be seen: a client that has it may ask again at once.

local worker_id, ttl_ms = ARGV[1], ARGV[2]
local codes, stored, stale, orphaned = {}, 0, 0, 0
local bells = {}

for i = 3, #ARGV, 3 do
  local id, attempt, reply = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local request_key, reply_key = KEYS[4] .. id, KEYS[6] .. id
  local fields = redis.call('HMGET', request_key, 'attempt', 'worker', 'ingress')
  local code
  if not fields[1] then
    code = redis.call('EXISTS', reply_key) == 1 and 2 or 0
    -- In `open` still only if it has outlived its TTL unanswered.
    orphaned = orphaned + redis.call('SREM', KEYS[2], id)
  elseif fields[1] ~= attempt or fields[2] ~= worker_id then
    code = 3
    stale = stale + 1
  else
    redis.call('DEL', request_key, KEYS[5] .. id)
    if reply == '@' then reply = '@' .. attempt end
    redis.call('SET', reply_key, id .. reply, 'PX', ttl_ms)
    local bell = KEYS[8] .. fields[3]
    bells[bell] = bells[bell] or {}
    table.insert(bells[bell], id)
    stored = stored + 1
    code = 1
  end
  if (code == 0 or code == 3) and reply == '@' then
    redis.call('DEL', KEYS[7] .. id .. ':' .. attempt)
  end
  -- A stale reply must not end the lease of this worker's own later attempt.
  if code ~= 3 or fields[2] ~= worker_id then redis.call('LREM', KEYS[1], 1, id) end
  codes[#codes + 1] = code
end
for bell, ids in pairs(bells) do
  for i = 1, #ids, 1000 do
    redis.call('RPUSH', bell, unpack(ids, i, math.min(i + 999, #ids)))
    redis.call('SREM', KEYS[2], unpack(ids, i, math.min(i + 999, #ids)))
  end
  redis.call('PEXPIRE', bell, ttl_ms)
end
if stored > 0 then redis.call('HINCRBY', KEYS[3], 'replied', stored) end
if orphaned > 0 then redis.call('HINCRBY', KEYS[3], 'orphaned', orphaned) end
if stale > 0 then redis.call('HINCRBY', KEYS[3], 'stale', stale) end
if KEYS[9] then
  -- First, as in beat: of no replies at all it would be ZADD that maxmemory refuses.
  redis.call('PEXPIRE', KEYS[9], 60000)
  local time = redis.call('TIME')
  redis.call('ZADD', KEYS[9], time[1] * 1000 + math.floor(time[2] / 1000), worker_id)
  redis.call('PEXPIRE', KEYS[9], 60000)
end
return codes
