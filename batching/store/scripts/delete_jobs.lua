-- delete_jobs: finished jobs of one version are forgotten, with results and inputs.
--
-- KEYS  1 body prefix  2 job prefix  3 job index  4 large reply prefix
-- ARGV  ids, at most some thousand
-- Returns how many were deleted. One that has not finished, or is tried again meanwhile, stays.
--
-- A job that was deleted before is none, so the call may be made again.

local deleted = 0
for _, id in ipairs(ARGV) do
  local name = KEYS[2] .. id
  local known = redis.call('HMGET', name, 'status', 'result')
  if known[1] then
    local attempt = known[2] and string.match(known[2], '@(%d+)$')
    if attempt and known[2] == id .. '@' .. attempt then redis.call('DEL', KEYS[4] .. id .. ':' .. attempt) end
    redis.call('DEL', name, KEYS[1] .. id)
    redis.call('ZREM', KEYS[3], id)
    deleted = deleted + 1
  end
end
return deleted
