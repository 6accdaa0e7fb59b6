-- reply: each answer is stored for its ingress and the ownership ends, once.
--
-- KEYS  1 lease  2 open  3 counters  4 body prefix  5 reply prefix
--       6 large reply prefix  7 done prefix  8 suspects  9 job prefix
-- ARGV  1 worker id  2 reply_ttl_ms  then per request: id, attempt, ingress id, value of its reply
--         key: the id and the reply's bytes ('@' = in their own key); of a job, whose ingress
--         id is `job`, as in answer_job.lua
-- Returns an array, one code per request:
--        1 stored   0 nobody waits (cancelled, or received already)   2 stored before   3 stale
--
-- The ingress gets each answer twice: in its replies list, which spares it a round trip, and in the
-- reply key, for when the list's entry was popped into a broken connection. A job keeps it.
--
-- Races closed: whoever takes the request out of the lease first wins (reply, cancel or reclaim), so
-- two replies can never be published; a worker that was taken for dead is told so (stale) once
-- somebody has claimed its request again, while its late answer is still welcome before that, and
-- takes the request out of the suspects list. The first write frees memory, so it works at maxmemory. A
-- reply whose acknowledgement was lost may be sent again.

local worker_id, ttl_ms = ARGV[1], ARGV[2]
local codes, stored, stale, orphaned = {}, 0, 0, 0

-- Mostly the worker owns the whole batch, which one call finds out.
local function is_owning_all(first, last)
  local held = redis.call('LRANGE', KEYS[1], 0, (last - first) / 4)
  for i = first, last, 4 do
    if held[(i - first) / 4 + 1] ~= ARGV[i] .. ':' .. ARGV[i + 1] then return false end
  end
  return true
end

-- Returns the code of a request that was not taken out of the lease.
local function code_of(id, attempt)
  local record = redis.call('HGET', KEYS[2], id)
  if not record then return redis.call('EXISTS', KEYS[5] .. id) == 1 and 2 or 0 end
  -- A suspect's record says who had it last, until it is handed out again.
  local attempts, owner = string.match(record, '^(%d+) (%S+)')
  if attempts == attempt and owner == worker_id then
    redis.call('LREM', KEYS[8], 1, id)
    return 1
  end
  stale = stale + 1
  return 3
end

local function publish(first, last)
  local ids, names, values, lists = {}, {}, {}, {}
  for i = first, last, 4 do
    local id, attempt, ingress_id, value = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    local code, is_kept = codes[(i + 1) / 4]
    if ingress_id == 'job' then
      codes[(i + 1) / 4], is_kept =
        answer_job(KEYS[9], KEYS[2], KEYS[4] .. id, KEYS[6], id, attempt, worker_id, value, code)
      if is_kept then stored = stored + 1 elseif code == 1 then orphaned = orphaned + 1 end
    elseif code == 1 then
      if value == '@' then value = id .. '@' .. attempt end
      ids[#ids + 1] = id
      names[#ids], values[#ids] = KEYS[4] .. id, value
      local list = KEYS[7] .. ingress_id
      lists[list] = lists[list] or {}
      table.insert(lists[list], value)
    elseif value == '@' and code ~= 2 then
      redis.call('DEL', KEYS[6] .. id .. ':' .. attempt)
    end
  end
  if #ids == 0 then return end
  local known = redis.call('HDEL', KEYS[2], unpack(ids))
  stored = stored + known
  orphaned = orphaned + #ids - known -- had outlived their TTL unanswered
  redis.call('DEL', unpack(names))
  for n, id in ipairs(ids) do redis.call('SET', KEYS[5] .. id, values[n], 'PX', ttl_ms) end
  for list, entries in pairs(lists) do
    redis.call('RPUSH', list, unpack(entries))
    redis.call('PEXPIRE', list, ttl_ms)
  end
end

local function answer(first, last)
  local is_whole = is_owning_all(first, last)
  if is_whole then redis.call('LTRIM', KEYS[1], (last - first) / 4 + 1, -1) end
  for i = first, last, 4 do
    local id, attempt = ARGV[i], ARGV[i + 1]
    local is_owned = is_whole or redis.call('LREM', KEYS[1], 1, id .. ':' .. attempt) == 1
    codes[(i + 1) / 4] = is_owned and 1 or code_of(id, attempt)
  end
  publish(first, last)
end

-- In pieces: Lua cannot pass more than some 8,000 arguments.
for first = 3, #ARGV, 4000 do answer(first, math.min(first + 3996, #ARGV - 3)) end
if stored > 0 then redis.call('HINCRBY', KEYS[3], 'replied', stored) end
if orphaned > 0 then redis.call('HINCRBY', KEYS[3], 'orphaned', orphaned) end
if stale > 0 then redis.call('HINCRBY', KEYS[3], 'stale', stale) end
return codes
