-- progress: what a handler tells about jobs while it runs is kept for those who ask.
--
-- KEYS  1 lease  2 job prefix
-- ARGV  1 limit: pieces of one answer that are kept  then per job: id, attempt, its progress ('' =
--       no news), how many pieces, and for each its place in the answer's bytes, and bytes
-- Returns an array, one code per job: 1 kept   0 not: it is not this attempt's any more, or has ended
--
-- Races closed: only the owner of a job that runs can tell about it, so that nothing comes after its end
-- and nothing of an older attempt; what makes an attempt end takes its progress and pieces away. A piece
-- is known by its place, so one whose acknowledgement was lost may be sent again.

local codes, at = {}, 2
while at <= #ARGV do
  local id, attempt, progress, count = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local name = KEYS[2] .. id
  local known = redis.call('HMGET', name, 'keep_ms', 'status')
  local is_running = known[1] and not known[2] and redis.call('LPOS', KEYS[1], id .. ':' .. attempt)
  codes[#codes + 1] = is_running and 1 or 0
  if is_running and progress ~= '' then redis.call('HSET', name, 'progress', progress) end
  if is_running and count > 0 then
    local pieces, told = name .. ':pieces', 0
    for i = at + 4, at + 2 + 2 * count, 2 do
      redis.call('ZADD', pieces, ARGV[i], ARGV[i] .. ':' .. ARGV[i + 1])
      told = ARGV[i] + #ARGV[i + 1]
    end
    redis.call('ZREMRANGEBYRANK', pieces, 0, -1 - ARGV[1])
    redis.call('PEXPIRE', pieces, math.max(1, redis.call('PTTL', name)))
    redis.call('HSET', name, 'piece_bytes', string.format('%.0f', told))
  end
  at = at + 4 + 2 * count
end
return codes
