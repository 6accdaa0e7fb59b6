-- record: the measurements of a worker's handler are added to its version's.
--
-- KEYS  1 config  2 metrics (hash)
-- ARGV  1 limit: fields the hash may have  2.. op, field, number, op, field, number, ...
--       op: set (the last one counts) or add
-- Returns how many were dropped for the limit; -1: no such version, nothing was counted.
--
-- The version is looked for in the same step: the hash of a version that was just unregistered would
-- never be deleted. A handler that makes up labels must not fill Redis, hence the limit.

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local room = tonumber(ARGV[1]) - redis.call('HLEN', KEYS[2])
local dropped = 0
for i = 2, #ARGV, 3 do
  local is_new = redis.call('HGET', KEYS[2], ARGV[i + 1]) == false
  if is_new and room <= 0 then
    dropped = dropped + 1
  else
    if is_new then room = room - 1 end
    if ARGV[i] == 'set' then
      redis.call('HSET', KEYS[2], ARGV[i + 1], ARGV[i + 2])
    else
      redis.call('HINCRBYFLOAT', KEYS[2], ARGV[i + 1], ARGV[i + 2])
    end
  end
end
return dropped
