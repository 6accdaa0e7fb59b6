-- delete_jobs: finished jobs of one version are forgotten, with results and inputs.
--
-- KEYS  1 body prefix  2 job prefix  3 job index  4 large reply prefix
-- ARGV  ids, at most some thousand
-- Returns the ids of those that are gone. One that has not finished, or is tried again meanwhile, stays.
--
-- A call whose answer was lost may be made again: what was deleted before is among the gone.

local gone = {}
for _, id in ipairs(ARGV) do
  local name = KEYS[2] .. id
  local known = redis.call('HMGET', name, 'status', 'result')
  if known[1] then
    local attempt = known[2] and string.match(known[2], '@(%d+)$')
    if attempt and known[2] == id .. '@' .. attempt then redis.call('DEL', KEYS[4] .. id .. ':' .. attempt) end
    redis.call('DEL', name, KEYS[1] .. id)
    redis.call('ZREM', KEYS[3], id)
  end
  if redis.call('EXISTS', name) == 0 then gone[#gone + 1] = id end
end
return gone
