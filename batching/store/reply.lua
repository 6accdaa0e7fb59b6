-- reply: each answer is stored for its ingress and the ownership ends, once.
--
-- KEYS  1 lease of this worker  2 open  3 counters  4 request prefix  5 body prefix
--       6 reply prefix  7 large reply prefix  8 done prefix  9 idle (only with job tickets)
-- ARGV  1 worker id  2 reply_ttl_ms  then per request: id, attempt, value of its reply key: the id and
--         the reply's bytes ('@' = in their own key)
-- Returns an array, one code per request:
--        1 stored   0 nobody waits (cancelled, or collected already)   2 stored before   3 stale
--
-- Races closed: whoever flips the request first wins (reply, cancel or reclaim), so two replies can
-- never be published; a worker that was taken for dead is told so (stale) once its request has a new
-- owner, while its late answer is still welcome before that. The first write frees memory, so it
-- works at maxmemory. A reply whose acknowledgement was lost may be sent again. With job tickets the
-- worker is idle when its answer can be seen: a client that has it may ask again at once.

local worker_id, ttl_ms = ARGV[1], ARGV[2]
local codes, stored, stale, orphaned = {}, 0, 0, 0

-- Ends the ownership of these, mostly the whole batch and then in one call. A stale reply must not
-- end the lease of this worker's own later attempt.
local function release(ids, is_own_later)
  local held = redis.call('LRANGE', KEYS[1], 0, #ids - 1)
  local is_whole = next(is_own_later) == nil
  for n, id in ipairs(ids) do is_whole = is_whole and held[n] == id end
  if is_whole then
    redis.call('LPOP', KEYS[1], #ids)
    return
  end
  for _, id in ipairs(ids) do
    if not is_own_later[id] then redis.call('LREM', KEYS[1], 1, id) end
  end
end

local function publish(ids, values, answered)
  redis.call('DEL', unpack(answered))
  redis.call('SREM', KEYS[2], unpack(ids))
  for n, id in ipairs(ids) do redis.call('SET', KEYS[6] .. id, values[n], 'PX', ttl_ms) end
  stored = stored + #ids
end

local function answer(first, last)
  local ids, values, answered, bells = {}, {}, {}, {}
  local asked, is_own_later = {}, {}
  for i = first, last, 3 do
    local id, attempt, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local request_key = KEYS[4] .. id
    local fields = redis.call('HMGET', request_key, 'attempt', 'worker', 'ingress')
    local code
    if not fields[1] then
      code = redis.call('EXISTS', KEYS[6] .. id) == 1 and 2 or 0
      -- In `open` still only if it has outlived its TTL unanswered.
      orphaned = orphaned + redis.call('SREM', KEYS[2], id)
    elseif fields[1] ~= attempt or fields[2] ~= worker_id then
      code = 3
      stale = stale + 1
      is_own_later[id] = fields[2] == worker_id or nil
    else
      code = 1
      ids[#ids + 1] = id
      values[#ids] = value == '@' and id .. '@' .. attempt or value
      answered[2 * #ids - 1], answered[2 * #ids] = request_key, KEYS[5] .. id
      local bell = KEYS[8] .. fields[3]
      bells[bell] = bells[bell] or {}
      table.insert(bells[bell], id)
    end
    if (code == 0 or code == 3) and value == '@' then
      redis.call('DEL', KEYS[7] .. id .. ':' .. attempt)
    end
    asked[#asked + 1] = id
    codes[#codes + 1] = code
  end
  release(asked, is_own_later)
  if #ids > 0 then publish(ids, values, answered) end
  for bell, done in pairs(bells) do
    redis.call('RPUSH', bell, unpack(done))
    redis.call('PEXPIRE', bell, ttl_ms)
  end
end

-- In pieces: Lua cannot pass more than some 8,000 arguments.
for first = 3, #ARGV, 3000 do answer(first, math.min(first + 2999, #ARGV)) end
if stored > 0 then redis.call('HINCRBY', KEYS[3], 'replied', stored) end
if orphaned > 0 then redis.call('HINCRBY', KEYS[3], 'orphaned', orphaned) end
if stale > 0 then redis.call('HINCRBY', KEYS[3], 'stale', stale) end
if KEYS[9] then
  -- First, as in beat: of no replies at all it would be ZADD that maxmemory refuses.
  redis.call('PEXPIRE', KEYS[9], 60000)
  local time = redis.call('TIME')
  redis.call('ZADD', KEYS[9], time[1] * 1000 + math.floor(time[2] / 1000), worker_id)
  redis.call('PEXPIRE', KEYS[9], 60000)
end
return codes
