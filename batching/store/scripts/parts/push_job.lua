-- push_job: a part of the scripts that have jobs wait; `loader.py` puts it in front of them.
--
-- Writes the record and pushes the id; returns false at maxmemory, and then nothing is changed. The
-- queue of requests stays without a TTL.

local function push_job(config, open_key, queue, is_high, id, rest, ttl_ms, now_us)
  local record = '0 - 0 ' .. string.format('%.0f', now_us) .. ' ' .. rest
  if type(redis.pcall('HSET', open_key, id, record)) == 'table' then return false end
  redis.call('RPUSH', queue, id)
  if not is_high then redis.call('HSET', config, 'jobs', 1) end
  for _, name in ipairs(is_high and {open_key} or {open_key, queue}) do
    if redis.call('PTTL', name) < ttl_ms + 60000 then redis.call('PEXPIRE', name, ttl_ms + 120000) end
  end
  return true
end

