-- tell_webhook: a part of the scripts that change a job's status; `loader.py` puts it in front of them.
--
-- The event is in the version's list, due now, in the step that makes it true: no process that dies in
-- between can lose it, or send what is not true.

local function tell_webhook(prefix, id, event, now_ms, keep_ms)
  local name, due = prefix .. id, prefix .. 'webhooks'
  redis.call('HSET', name, 'webhook_event', event, 'webhook_tries', 0)
  redis.call('ZADD', due, now_ms, id .. ' ' .. event)
  if redis.call('PTTL', due) < keep_ms then redis.call('PEXPIRE', due, keep_ms + 60000) end
end

