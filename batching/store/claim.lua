-- claim: the worker owns up to `limit` requests, with attempt and lease, or is told to wait.
--
-- KEYS  1 queue  2 solo  3 bell  4 gather  5 open  6 counters  7 worker beats  8 ingress beats
--       9 lease of this worker  10 request prefix  11 body prefix  12 reply prefix  13 done prefix
--       14 idle (only with job tickets)
-- ARGV  1 worker id  2 limit  3 patience_us  4 dead_after_ms  5 lease_ttl_ms  6 reply_ttl_ms
-- Returns one of
--   {'BATCH', id, attempt, queue_us, wire, id, attempt, queue_us, wire, ...}  wire '' = in its own key
--   {'WAIT', waiting, oldest_age_us}   fewer than `limit` wait and the oldest is younger than
--                                      patience_us; this worker is now the one collector
--   {'BUSY'}                           another worker collects; park on the bell
--   {'EMPTY'}                          nothing waits
--
-- Races closed: pop, lease, attempt and owner are one step, so a worker that dies at any moment
-- leaves either a waiting or a leased request. One collector at a time, so idle workers do not open
-- a window each. The first write frees or pops, so it works at maxmemory. A crash suspect from the
-- solo list is handed out alone. A worker is idle from the claim that finds nothing, or the reply
-- before it, to the one that finds something.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local worker_id, limit, patience_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local dead_before_ms = now_ms - tonumber(ARGV[4])
local reply_ttl_ms = ARGV[6]
local batch, owned = {'BATCH'}, {}
local ingress_is_alive = {}
local expired, orphaned = 0, 0

local function discard(id, request_key)
  redis.call('DEL', request_key, KEYS[11] .. id)
  redis.call('SREM', KEYS[5], id)
end

local function is_alive(ingress_id)
  if ingress_is_alive[ingress_id] == nil then
    local beat_ms = redis.call('ZSCORE', KEYS[8], ingress_id)
    ingress_is_alive[ingress_id] = beat_ms and tonumber(beat_ms) >= dead_before_ms or false
  end
  return ingress_is_alive[ingress_id]
end

-- An id without a request was replied to or cancelled, or has outlived even its TTL unanswered.
local function forget(id)
  if redis.call('SREM', KEYS[5], id) == 1 then redis.call('HINCRBY', KEYS[6], 'orphaned', 1) end
end

-- Takes the request if it can still be answered in time by somebody who listens.
local function take(id)
  local request_key = KEYS[10] .. id
  local fields = redis.call('HMGET', request_key, 'state', 'attempt', 'submitted_us', 'deadline_ms', 'ingress', 'wire')
  if not fields[1] then return forget(id) end
  if fields[1] ~= 'Q' then return end
  if not is_alive(fields[5]) then
    discard(id, request_key)
    orphaned = orphaned + 1
  elseif tonumber(fields[4]) <= now_ms then
    discard(id, request_key)
    redis.call('SET', KEYS[12] .. id, id .. '!deadline_exceeded', 'PX', reply_ttl_ms)
    redis.call('RPUSH', KEYS[13] .. fields[5], id)
    redis.call('PEXPIRE', KEYS[13] .. fields[5], reply_ttl_ms)
    expired = expired + 1
  else
    local attempt = tonumber(fields[2]) + 1
    redis.call('HSET', request_key, 'state', 'C', 'attempt', attempt, 'worker', worker_id)
    local n = #batch
    batch[n + 1], batch[n + 2] = id, attempt
    batch[n + 3], batch[n + 4] = now_us - tonumber(fields[3]), fields[6]
    owned[#owned + 1] = id
  end
end

local function oldest_age_us()
  while true do
    local id = redis.call('LINDEX', KEYS[1], 0)
    if not id then return nil end
    local submitted_us = redis.call('HGET', KEYS[10] .. id, 'submitted_us')
    if submitted_us then return now_us - tonumber(submitted_us) end
    redis.call('LPOP', KEYS[1])
    forget(id)
  end
end

while #owned == 0 do
  local id = redis.call('LPOP', KEYS[2])
  if not id then break end
  take(id)
end

if #owned == 0 then
  local waiting = redis.call('LLEN', KEYS[1])
  if waiting < limit then
    local age_us = oldest_age_us()
    waiting = redis.call('LLEN', KEYS[1])
    if age_us and age_us < patience_us then
      local collector = redis.call('HGET', KEYS[4], 'worker')
      if collector and collector ~= worker_id then return {'BUSY'} end
      redis.call('HSET', KEYS[4], 'worker', worker_id, 'limit', limit)
      redis.call('PEXPIRE', KEYS[4], math.ceil((patience_us - age_us) / 1000) + 500)
      return {'WAIT', waiting, string.format('%.0f', age_us)}
    end
  end
  local looked = 0
  while #owned < limit and looked < 8 * limit do
    local ids = redis.call('LPOP', KEYS[1], limit - #owned)
    if not ids or #ids == 0 then break end
    looked = looked + #ids
    for _, id in ipairs(ids) do take(id) end
  end
end

if redis.call('HGET', KEYS[4], 'worker') == worker_id then redis.call('DEL', KEYS[4]) end
if redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[3])
elseif redis.call('LLEN', KEYS[3]) == 0 then
  redis.call('RPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], 60000)
end
if expired > 0 then redis.call('HINCRBY', KEYS[6], 'expired', expired) end
if orphaned > 0 then redis.call('HINCRBY', KEYS[6], 'orphaned', orphaned) end
if #owned == 0 then
  if KEYS[14] then
    redis.call('ZADD', KEYS[14], now_ms, worker_id)
    redis.call('PEXPIRE', KEYS[14], 60000)
  end
  return {'EMPTY'}
end
if KEYS[14] then redis.call('ZREM', KEYS[14], worker_id) end

-- In pieces: Lua cannot pass more than some 8,000 arguments.
for first = 1, #owned, 1000 do
  redis.call('RPUSH', KEYS[9], unpack(owned, first, math.min(first + 999, #owned)))
end
redis.call('PEXPIRE', KEYS[9], ARGV[5])
redis.call('ZADD', KEYS[7], now_ms, worker_id)
redis.call('PEXPIRE', KEYS[7], ARGV[5])
return batch
