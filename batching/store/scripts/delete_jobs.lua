-- delete_jobs: finished bulk lines of one version are forgotten, with results and inputs. Other jobs stay
-- until their TTL, or the index would name them.
--
-- KEYS  1 body prefix  2 job prefix  3 large reply prefix
-- ARGV  ids, at most some thousand
-- Returns the ids of those that are gone. One that has not finished, or is tried again meanwhile, stays.
--
-- A call whose answer was lost may be made again: what was deleted before is among the gone.

local gone = {}
for _, id in ipairs(ARGV) do
  local name = KEYS[2] .. id
  local known = redis.call('HMGET', name, 'status', 'result', 'priority')
  if known[1] and known[3] == 'low' then
    drop_large_result(KEYS[3], id, known[2])
    redis.call('DEL', name, KEYS[1] .. id)
  end
  if redis.call('EXISTS', name) == 0 then gone[#gone + 1] = id end
end
return gone
