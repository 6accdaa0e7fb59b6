-- cancel_job: the job will not be run, and its result is deleted, or dropped when it comes. A job that
-- failed or expired loses its input as well: it is no dead letter any more.
--
-- KEYS  1 queue  2 suspects  3 open  4 counters  5 body prefix  6 lease prefix  7 worker beats
--       8 job queue  9 job prefix  10 large reply prefix
-- ARGV  1 id
-- Returns 1 cancelled   2 finished before, and its result has been deleted   0 unknown
--
-- Race closed: as in cancel, only one of a reply and a cancellation counts. It may be repeated.

local id = ARGV[1]
local name = KEYS[9] .. id
local known = redis.call('HMGET', name, 'status', 'result', 'keep_ms')
if not known[3] then return 0 end
if known[1] then
  redis.call('HSET', name, 'result', '')
  if known[1] ~= 'cancelled' then
    redis.call('HDEL', name, 'input')
    redis.call('DEL', KEYS[5] .. id)
  end
  drop_large_result(KEYS[10], id, known[2])
  return 2
end
local time = redis.call('TIME')
local record = redis.call('HGET', KEYS[3], id) or ''
if redis.call('LREM', KEYS[8], 1, id) + redis.call('LREM', KEYS[1], 1, id) + redis.call('LREM', KEYS[2], 1, id) == 0 then
  local entry = id .. ':' .. (string.match(record, '^%d+') or 0) + 1
  for _, worker_id in ipairs(redis.call('ZRANGE', KEYS[7], 0, -1)) do
    if redis.call('LREM', KEYS[6] .. worker_id, 1, entry) == 1 then break end
  end
end
finish_job(KEYS[9], KEYS[3], KEYS[5] .. id, id, 'cancelled', '', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HINCRBY', KEYS[4], 'cancelled', 1)
return 1
