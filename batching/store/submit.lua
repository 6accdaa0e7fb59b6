-- submit: the requests wait in the queue, or each is refused with a reason. All or none at OOM.
--
-- KEYS  1 config  2 queue  3 bell  4 gather  5 open  6 counters  7 worker beats  8 ingress beats
--       9 request prefix  10 reply prefix  11 more prefix  12 solo  13 idle
-- ARGV  1 ingress id  2 dead_after_ms  then per request, at most 2,000: id, ttl_ms, age_us (since it
--         arrived at the ingress; '' = accepted before, and lost by Redis: needs no ticket), wire
--         bytes ('' = in its own key)
-- Returns an array, one code per request:
--        1 queued   2 known already (a re-sent submit)   0 queue full
--       -1 no such model version   -2 no live worker
--       -4 no ticket: the version has job tickets, and no idle worker is left for this request
--
-- Race closed: capacity check and push are one step, and a submit whose reply was lost may be sent
-- again without queueing twice. At maxmemory the first write (HSET) is refused before anything is
-- changed, which is what admission wants.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local ingress_id, dead_after_ms = ARGV[1], tonumber(ARGV[2])
local codes = {}

local function refuse_all(code)
  for i = 3, #ARGV, 4 do codes[#codes + 1] = code end
  return codes
end

local config = redis.call('HMGET', KEYS[1], 'max_queue', 'job_ticket')
local max_queue = tonumber(config[1] or '')
if not max_queue then return refuse_all(-1) end
local has_worker = redis.call('ZCOUNT', KEYS[7], now_ms - dead_after_ms, '+inf') > 0

local waiting_before = redis.call('LLEN', KEYS[2])
local waiting = waiting_before
local ids = {}

-- One for each idle worker that nobody waits for yet. One that died or left is idle no more.
local function count_tickets()
  local oldest_ms = now_ms - dead_after_ms
  local lives = {}
  for _, worker_id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[7], oldest_ms, '+inf')) do lives[worker_id] = true end
  local tickets = -waiting - redis.call('LLEN', KEYS[12])
  for _, worker_id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[13], oldest_ms, '+inf')) do
    if lives[worker_id] then tickets = tickets + 1 end
  end
  return tickets
end

-- Mostly none is there, which one call tells of all.
local names = {}
for i = 3, #ARGV, 4 do
  names[#names + 1] = KEYS[9] .. ARGV[i]
  names[#names + 1] = KEYS[10] .. ARGV[i]
end
local is_any_known = redis.call('EXISTS', unpack(names)) > 0
local is_queued = {}

local tickets = config[2] == '1' and count_tickets() or math.huge
for i = 3, #ARGV, 4 do
  local id, ttl_ms, age_us, wire = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  local request_key, reply_key = names[(i - 1) / 2], names[(i + 1) / 2]
  local code
  if is_queued[id] or is_any_known and redis.call('EXISTS', request_key, reply_key) > 0 then
    code = 2
  elseif not has_worker then
    code = -2
  elseif tickets <= 0 and age_us then
    code = -4
  elseif waiting >= max_queue then
    code = 0
  else
    redis.call('HSET', request_key, 'state', 'Q', 'attempt', 0, 'submitted_us', string.format('%d', now_us - (age_us or 0)),
      'deadline_ms', now_ms + ttl_ms, 'ingress', ingress_id, 'worker', '', 'wire', wire)
    redis.call('PEXPIRE', request_key, ttl_ms + 60000)
    ids[#ids + 1] = id
    is_queued[id] = true
    waiting = waiting + 1
    tickets = tickets - 1
    code = 1
  end
  codes[#codes + 1] = code
end
if #ids == 0 then return codes end

redis.call('RPUSH', KEYS[2], unpack(ids))
redis.call('SADD', KEYS[5], unpack(ids))
redis.call('HINCRBY', KEYS[6], 'accepted', #ids)
redis.call('ZADD', KEYS[8], now_ms, ingress_id)
redis.call('PEXPIRE', KEYS[8], 86400000)

-- A collector with an open window is told when its batch is full; otherwise one idle worker is woken
-- when the queue stops being empty. Busy workers look at the queue by themselves.
local collector = redis.call('HMGET', KEYS[4], 'worker', 'limit')
if collector[1] then
  local more_key = KEYS[11] .. collector[1]
  if waiting >= tonumber(collector[2]) and redis.call('LLEN', more_key) == 0 then
    redis.call('RPUSH', more_key, '1')
    redis.call('PEXPIRE', more_key, 60000)
  end
elseif waiting_before == 0 and redis.call('LLEN', KEYS[3]) == 0 then
  redis.call('RPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], 60000)
end
return codes
