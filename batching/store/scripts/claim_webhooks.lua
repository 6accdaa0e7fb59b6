-- claim_webhooks: a sender takes up to `limit` events that receivers are to hear of now.
--
-- KEYS  1 webhooks  2 job prefix
-- ARGV  1 limit  2 lease_ms: for so long nobody else takes them
-- Returns id, event, tries so far, ms of the submit, and so on
--
-- Race closed: a sender that dies leaves the event to whoever looks when the lease is over, so it may
-- be told twice, and is never forgotten before its job. A job that has gone takes its events along.

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, ARGV[1])) do
  local id, event = string.match(entry, '^(%S+) (%S+)$')
  local job = id and redis.call('HMGET', KEYS[2] .. id, 'webhook', 'webhook_event', 'webhook_tries', 'queued_ms')
  if job and job[1] and job[4] then
    redis.call('ZADD', KEYS[1], now_ms + ARGV[2], entry)
    found[#found + 1] = id
    found[#found + 1] = event
    found[#found + 1] = job[2] == event and job[3] or '0'
    found[#found + 1] = job[4]
  else
    redis.call('ZREM', KEYS[1], entry)
  end
end
return found
