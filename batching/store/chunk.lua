-- chunk: a piece of each answer waits for its ingress, while the worker goes on with the rest.
--
-- KEYS  1 request prefix  2 chunk prefix  3 done prefix
-- ARGV  1 worker id  2 ttl_ms of the request from now on  3 chunk_ttl_ms
--       4 limit: pieces of one answer that may wait  then per request: id, attempt, index, bytes
-- Returns an array, one code per request:
--        1 stored   0 nobody waits (cancelled, or answered)   2 stored before   3 stale
--        4 full: the client is slow, send it again later
--
-- Races closed: only the owner of a running request can add to its answer, so the pieces of two
-- attempts never mix; a piece whose acknowledgement was lost may be sent again. From the first piece
-- on the request is marked (`chunks`), and reclaim answers it instead of running it twice. At
-- maxmemory the first write is refused before anything is changed; the worker waits then.

local worker_id, ttl_ms, chunk_ttl_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local limit = tonumber(ARGV[4])
local codes = {}

local function add(id, attempt, index, bytes)
  local request_key, list = KEYS[1] .. id, KEYS[2] .. id
  local fields = redis.call('HMGET', request_key, 'state', 'attempt', 'worker', 'chunks', 'ingress')
  if not fields[1] then return 0 end
  if fields[1] ~= 'C' or fields[2] ~= attempt or fields[3] ~= worker_id then return 3 end
  local count = tonumber(fields[4] or 0)
  if index ~= count then return index < count and 2 or 3 end
  local waiting = redis.call('LLEN', list)
  if waiting >= limit then return 4 end
  redis.call('RPUSH', list, bytes)
  redis.call('PEXPIRE', list, chunk_ttl_ms)
  redis.call('HSET', request_key, 'chunks', count + 1)
  if redis.call('PTTL', request_key) < ttl_ms then redis.call('PEXPIRE', request_key, ttl_ms) end
  if waiting == 0 then
    redis.call('RPUSH', KEYS[3] .. fields[5], id)
    redis.call('PEXPIRE', KEYS[3] .. fields[5], chunk_ttl_ms)
  end
  return 1
end

for i = 5, #ARGV, 4 do
  codes[#codes + 1] = add(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3])
end
return codes
