-- finish_job: a part of the scripts that end jobs; `loader.py` puts it in front of them.
--
-- A job that did not succeed keeps its input, so that it can be retried. The first write frees memory.
-- A job without a hash has outlived its TTL: returns false, and nothing is kept.

local function finish_job(prefix, open_key, body_key, id, status, result, now_ms)
  local name = prefix .. id
  local record = redis.call('HGET', open_key, id)
  redis.call('HDEL', open_key, id)
  local known = redis.call('HMGET', name, 'keep_ms', 'webhook')
  local keep_ms = known[1]
  local is_input_kept = keep_ms and status ~= 'succeeded'
  if not is_input_kept then redis.call('DEL', body_key) end
  if not keep_ms then return false end
  redis.call('HSET', name, 'status', status, 'finished_ms', now_ms, 'result', result)
  redis.call('PEXPIRE', name, keep_ms)
  if known[2] then tell_webhook(prefix, id, status, now_ms, tonumber(keep_ms)) end
  if record and status ~= 'succeeded' then
    redis.call('HSET', name, 'input', (string.gsub(record, '^[^\n]*\n', '', 1)))
    redis.call('PEXPIRE', body_key, keep_ms)
  end
  return true
end

