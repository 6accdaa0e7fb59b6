-- chunk: a piece of each answer waits for its ingress, while the worker goes on with the rest.
--
-- KEYS  1 open  2 chunk prefix  3 done prefix  4 lease
-- ARGV  1 ttl_ms of the request from now on  2 chunk_ttl_ms
--       3 limit: pieces of one answer that may wait  then per request: id, attempt, index, bytes
-- Returns an array, one code per request:
--        1 stored   0 nobody waits (cancelled, or answered)   2 stored before   3 stale
--        4 full: the client is slow, send it again later
--
-- Races closed: only the owner of a running request can add to its answer, so the pieces of two
-- attempts never mix; a piece whose acknowledgement was lost may be sent again. From the first piece
-- on they are counted in the request's record, whose bytes are not needed any more: reclaim answers it
-- instead of running it twice. At maxmemory the first write is refused before anything is changed;
-- the worker waits then.

local ttl_ms, chunk_ttl_ms, limit = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local codes = {}

local function add(id, attempt, index, bytes)
  local record = redis.call('HGET', KEYS[1], id) or ''
  local attempts, owner, count, rest, ingress_id = string.match(record, '^(%d+) (%S+) (%d+) (%d+ %S+ %d+ (%S+)\n)')
  if not ingress_id then return 0 end
  if not redis.call('LPOS', KEYS[4], id .. ':' .. attempt) then return 3 end
  count = tonumber(count)
  if index ~= count then return index < count and 2 or 3 end
  local list = KEYS[2] .. id
  local waiting = redis.call('LLEN', list)
  if waiting >= limit then return 4 end
  redis.call('RPUSH', list, bytes)
  redis.call('PEXPIRE', list, chunk_ttl_ms)
  redis.call('HSET', KEYS[1], id, attempts .. ' ' .. owner .. ' ' .. count + 1 .. ' ' .. rest)
  if redis.call('PTTL', KEYS[1]) < ttl_ms then redis.call('PEXPIRE', KEYS[1], ttl_ms) end
  if waiting == 0 then
    redis.call('RPUSH', KEYS[3] .. ingress_id, id)
    redis.call('PEXPIRE', KEYS[3] .. ingress_id, chunk_ttl_ms)
  end
  return 1
end

for i = 4, #ARGV, 4 do
  codes[#codes + 1] = add(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3])
end
return codes
