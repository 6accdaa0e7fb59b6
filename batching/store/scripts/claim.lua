-- claim: the worker owns up to `limit` requests, by lease, or is told to wait.
--
-- KEYS  1 queue  2 suspects  3 wakeups  4 gather  5 open  6 counters  7 worker beats  8 ingress beats
--       9 lease  10 body prefix  11 reply prefix  12 done prefix  13 job queue  14 job prefix
--       15 config
-- ARGV  1 worker id  2 limit  3 patience_us  4 dead_after_ms  5 lease_ttl_ms  6 reply_ttl_ms
--       7 job_patience_us
-- Returns one of
--   {'BATCH', now_us, id, record, id, record, ...}   records as in records.py
--   {'WAIT', waiting, oldest_age_us}   fewer than `limit` wait and the oldest is younger than
--                                      patience_us; this worker is now the one collector
--   {'BUSY'}                           another worker collects; park on the wakeups
--   {'EMPTY'}                          nothing waits
--
-- Races closed: pop and lease are one step, so a worker that dies at any moment leaves either a
-- waiting or a leased request. One collector at a time, so idle workers do not open a window each.
-- The first write frees or pops, so it works at maxmemory. A crash suspect from the suspects list is
-- handed out alone, and from then on its last owner comes too late. A malformed or unreadable record is
-- dropped like a lost one: it must not stop the queue. A request that was queued in the future, by a
-- clock that has stepped back, counts as new: nobody collects for longer than patience_us.
--
-- Jobs get the seats that requests leave free when a batch closes, and batches of their own while no
-- request waits. A quarter of the seats is for jobs that are older than job_patience_us, so that they
-- get their turn on a busy day, too (docs/adr/0024-jobs.md). While no job waits, the configuration's
-- field `jobs` says 0, and nothing is asked about jobs.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local worker_id, limit, patience_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local dead_before_ms = now_ms - tonumber(ARGV[4])
local reply_ttl_ms = ARGV[6]
local batch = {'BATCH', string.format('%.0f', now_us)}
local owned = 0
local ingress_is_alive = {job = true} -- nobody waits for a job
local config = redis.call('HMGET', KEYS[15], 'max_queue', 'jobs')
local jobs = config[2] == '0' and 0 or redis.call('LLEN', KEYS[13])
local expired, orphaned = 0, 0

local function is_alive(ingress_id)
  if ingress_is_alive[ingress_id] == nil then
    local beat_ms = redis.call('ZSCORE', KEYS[8], ingress_id)
    ingress_is_alive[ingress_id] = beat_ms and tonumber(beat_ms) >= dead_before_ms or false
  end
  return ingress_is_alive[ingress_id]
end

local function discard(id)
  redis.call('HDEL', KEYS[5], id)
  redis.call('DEL', KEYS[10] .. id)
end

-- Takes the requests that can still be answered in time, and whose ingress is alive.
local function take(ids)
  local entries = {}
  for n, record in ipairs(redis.call('HMGET', KEYS[5], unpack(ids))) do
    local id = ids[n]
    local attempts, owner, queued_us, age_us, ttl_ms, ingress_id =
      string.match(record or '', '^(%d%d?%d?) (%S+) %d+ (%d+) ([%d-]+) (%d+) (%S+)\n')
    local is_readable = ingress_id and not string.find(id, '[^%w_-]')
    if not is_readable or #queued_us > 16 or #age_us > 16 or not is_alive(ingress_id) then
      -- Or it has outlived even its TTL unanswered.
      discard(id)
      orphaned = orphaned + 1
    elseif queued_us / 1000 + ttl_ms <= now_ms then
      expired = expired + 1
      if ingress_id == 'job' then
        finish_job(KEYS[14], KEYS[5], KEYS[10] .. id, id, 'expired', id .. '!deadline_exceeded', now_ms)
      else
        discard(id)
        redis.call('SET', KEYS[11] .. id, id .. '!deadline_exceeded', 'PX', reply_ttl_ms)
        redis.call('RPUSH', KEYS[12] .. ingress_id, id)
        redis.call('PEXPIRE', KEYS[12] .. ingress_id, reply_ttl_ms)
      end
    elseif ingress_id == 'job' and not start_job(KEYS[14], id, attempts + 1, worker_id, now_ms, ttl_ms) then
      discard(id)
      orphaned = orphaned + 1
    else
      batch[#batch + 1] = id
      batch[#batch + 1] = record
      entries[#entries + 1] = id .. ':' .. attempts + 1
      if owner ~= '-' then redis.call('HSET', KEYS[5], id, (string.gsub(record, '^(%d+) %S+', '%1 -', 1))) end
    end
  end
  if #entries > 0 then redis.call('RPUSH', KEYS[9], unpack(entries)) end
  owned = owned + #entries
end

local function oldest_age_us(queue)
  while true do
    local id = redis.call('LINDEX', queue, 0)
    if not id then return nil end
    local record = redis.call('HGET', KEYS[5], id) or ''
    local queued_us, age_us = string.match(record, '^%d+ %S+ %d+ (%d+) ([%d-]+) ')
    age_us = queued_us and now_us - queued_us + (tonumber(age_us) or 0)
    if age_us and math.abs(age_us) < 1e15 then return math.max(age_us, 0) end
    redis.call('LPOP', queue)
    discard(id)
    orphaned = orphaned + 1
  end
end

while owned == 0 do
  local id = redis.call('LPOP', KEYS[2])
  if not id then break end
  take({id})
end

-- Takes up to `seats` requests of this queue, if they are older than least_age_us.
local function take_from(queue, seats, least_age_us)
  local looked, full = 0, owned + seats
  while owned < full and looked < 8 * limit do
    local count = math.min(full - owned, 1000) -- in pieces: Lua cannot pass more than some 8,000 arguments
    if least_age_us then
      count = 1
      local age_us = oldest_age_us(queue)
      if not age_us or age_us < least_age_us then return end
    end
    local ids = redis.call('LPOP', queue, count)
    if not ids then return end
    looked = looked + #ids
    take(ids)
  end
end

if owned == 0 then
  local waiting = redis.call('LLEN', KEYS[1])
  local queue = waiting > 0 and KEYS[1] or KEYS[13]
  if waiting == 0 then waiting = jobs end
  if waiting > 0 and waiting < limit and patience_us > 0 then
    local age_us = oldest_age_us(queue)
    waiting = redis.call('LLEN', queue)
    if age_us and age_us < patience_us then
      if orphaned > 0 then redis.call('HINCRBY', KEYS[6], 'orphaned', orphaned) end
      local collector = redis.call('HGET', KEYS[4], 'worker')
      if collector and collector ~= worker_id then return {'BUSY'} end
      redis.call('HSET', KEYS[4], 'worker', worker_id, 'limit', limit)
      redis.call('PEXPIRE', KEYS[4], math.ceil((patience_us - age_us) / 1000) + 500)
      return {'WAIT', waiting, string.format('%.0f', age_us)}
    end
  end
  -- Of small batches, only some have a seat for old jobs; the clock's last digits are as good as dice.
  local seats = limit >= 4 and math.floor(limit / 4) or now_us % math.ceil(4 / limit) == 0 and 1 or 0
  if jobs > 0 then take_from(KEYS[13], seats, tonumber(ARGV[7])) end
  take_from(KEYS[1], limit - owned)
  if jobs > 0 then take_from(KEYS[13], limit - owned) end
end

if redis.call('HGET', KEYS[4], 'worker') == worker_id then redis.call('DEL', KEYS[4]) end
if redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2]) + (jobs > 0 and redis.call('LLEN', KEYS[13]) or 0) == 0 then
  redis.call('DEL', KEYS[3])
elseif redis.call('LLEN', KEYS[3]) == 0 then
  redis.call('RPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], 60000)
end
if expired > 0 then redis.call('HINCRBY', KEYS[6], 'expired', expired) end
if orphaned > 0 then redis.call('HINCRBY', KEYS[6], 'orphaned', orphaned) end
if owned == 0 then return {'EMPTY'} end
if config[1] and config[2] ~= '0' and jobs == 0 then redis.call('HSET', KEYS[15], 'jobs', 0) end

redis.call('PEXPIRE', KEYS[9], ARGV[5])
redis.call('ZADD', KEYS[7], now_ms, worker_id)
redis.call('PEXPIRE', KEYS[7], ARGV[5])
return batch
