-- claim_webhooks: a sender takes up to `limit` events that are due.
--
-- KEYS  1 webhooks  2 job prefix
-- ARGV  1 limit  2 lease_ms: how long no other sender takes them
-- Returns id, event, tries so far, ms of the submit, and so on
--
-- Race closed: a sender that dies leaves the event to whoever looks when the lease is over, so it may
-- be sent twice, and is never forgotten before its job. When a job is gone, so are its events.

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local events = {}
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, ARGV[1])) do
  local id, event = string.match(entry, '^(%S+) (%S+)$')
  local job = id and redis.call('HMGET', KEYS[2] .. id, 'webhook', 'webhook_event', 'webhook_tries', 'queued_ms')
  if job and job[1] and job[4] then
    redis.call('ZADD', KEYS[1], now_ms + ARGV[2], entry)
    events[#events + 1] = id
    events[#events + 1] = event
    events[#events + 1] = job[2] == event and job[3] or '0'
    events[#events + 1] = job[4]
  else
    redis.call('ZREM', KEYS[1], entry)
  end
end
return events
