-- end_webhook: a try to tell a receiver has ended.
--
-- KEYS  1 webhooks  2 job prefix  3 counters
-- ARGV  1 id  2 event  3 outcome: 'delivered', 'failed' or 'gone', which end it; 'pending' or 'busy',
--       after which it is due again; 'busy' was no try  4 ms until then  5 what went wrong, or ''
-- Returns 1, or 0 if another sender has ended it
--
-- Race closed: if two senders send the same event, as the first one's lease was over, the first end
-- counts.

local entry, name, outcome = ARGV[1] .. ' ' .. ARGV[2], KEYS[2] .. ARGV[1], ARGV[3]
if not redis.call('ZSCORE', KEYS[1], entry) then return 0 end
local is_over = outcome ~= 'pending' and outcome ~= 'busy'
if is_over then
  redis.call('ZREM', KEYS[1], entry)
else
  local time = redis.call('TIME')
  redis.call('ZADD', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], entry)
end
if outcome == 'busy' then return 1 end
redis.call('HINCRBY', KEYS[3], 'webhooks_' .. (is_over and outcome or 'retried'), 1)
if redis.call('HGET', name, 'webhook_event') == ARGV[2] then
  redis.call('HINCRBY', name, 'webhook_tries', 1)
  redis.call('HSET', name, 'webhook_status', outcome, 'webhook_error', ARGV[5])
end
return 1
