-- cancel: the requests will not be run, or their replies are there already.
--
-- KEYS  1 queue  2 solo  3 open  4 counters  5 request prefix  6 body prefix  7 reply prefix
--       8 lease prefix  9 chunk prefix
-- ARGV  1.. request ids
-- Returns an array, one code per request:  1 cancelled   2 replied already   0 unknown
--
-- Race closed: a reply and a cancellation of one request cannot both happen. LREM on a queue of
-- 10,000 ids costs about 0.1 ms; it keeps the queue's length true, which admission relies on.

local codes, cancelled = {}, 0
for i = 1, #ARGV do
  local id = ARGV[i]
  local fields = redis.call('HMGET', KEYS[5] .. id, 'state', 'worker')
  if fields[1] then
    redis.call('DEL', KEYS[5] .. id, KEYS[6] .. id, KEYS[9] .. id)
    if fields[1] == 'C' then
      redis.call('LREM', KEYS[8] .. fields[2], 1, id)
    elseif redis.call('LREM', KEYS[1], 1, id) == 0 then
      redis.call('LREM', KEYS[2], 1, id)
    end
    redis.call('SREM', KEYS[3], id)
    cancelled = cancelled + 1
    codes[i] = 1
  else
    codes[i] = redis.call('EXISTS', KEYS[7] .. id) == 1 and 2 or 0
  end
end
if cancelled > 0 then redis.call('HINCRBY', KEYS[4], 'cancelled', cancelled) end
return codes
