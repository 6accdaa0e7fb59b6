-- cancel: the requests will not be run, or their replies are there already.
--
-- KEYS  1 queue  2 suspects  3 open  4 counters  5 body prefix  6 reply prefix  7 lease prefix
--       8 chunk prefix  9 worker beats
-- ARGV  1.. request ids
-- Returns an array, one code per request:  1 cancelled   2 replied already   0 unknown
--
-- Race closed: a reply and a cancellation of one request cannot both happen. LREM on a queue of
-- 10,000 ids costs about 0.1 ms; it keeps the queue's length true, which admission relies on. A request
-- that does not wait is in a worker's lease. An unknown request may have a body: its submit was given up
-- between the two.

local codes, cancelled = {}, 0
local worker_ids

local function end_lease(id, attempt)
  worker_ids = worker_ids or redis.call('ZRANGE', KEYS[9], 0, -1)
  for _, worker_id in ipairs(worker_ids) do
    if redis.call('LREM', KEYS[7] .. worker_id, 1, id .. ':' .. attempt) == 1 then return end
  end
end

for i = 1, #ARGV do
  local id = ARGV[i]
  local record = redis.call('HGET', KEYS[3], id)
  if record then
    redis.call('HDEL', KEYS[3], id)
    redis.call('DEL', KEYS[5] .. id, KEYS[8] .. id)
    if redis.call('LREM', KEYS[1], 1, id) == 0 and redis.call('LREM', KEYS[2], 1, id) == 0 then
      end_lease(id, (string.match(record, '^%d+') or 0) + 1)
    end
    cancelled = cancelled + 1
    codes[i] = 1
  else
    redis.call('DEL', KEYS[5] .. id)
    codes[i] = redis.call('EXISTS', KEYS[6] .. id) == 1 and 2 or 0
  end
end
if cancelled > 0 then redis.call('HINCRBY', KEYS[4], 'cancelled', cancelled) end
return codes
