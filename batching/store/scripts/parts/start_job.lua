-- start_job: a part of `claim`: the job runs. Returns false if it has no hash: it has outlived its TTL.

local function start_job(prefix, id, attempt, worker_id, now_ms, ttl_ms)
  local name = prefix .. id
  local known = redis.call('HMGET', name, 'keep_ms', 'webhook_start')
  if not known[1] then return false end
  redis.call('HSET', name, 'started_ms', now_ms, 'attempts', attempt, 'worker', worker_id)
  if known[2] then tell_webhook(prefix, id, 'started', now_ms, tonumber(ttl_ms)) end
  return true
end

