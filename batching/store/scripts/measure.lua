-- measure: the queue of one version at this moment. Reads only.
--
-- KEYS  1 queue  2 suspects  3 job queue  4 open  5 counters
-- Returns {waiting, open, oldest_age_us, jobs, oldest_job_age_us, counter, count, counter, count, ...}
--         oldest ages: since the oldest waiting request arrived, or the oldest job; 0 = nothing waits.
--
-- One step, so that the counters and the open requests add up in the answer, too.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local function oldest_age_us(i)
  local id = redis.call('LINDEX', KEYS[i], 0)
  local record = id and redis.call('HGET', KEYS[4], id) or ''
  local queued_us, age_us = string.match(record, '^%d+ %S+ %d+ (%d+) ([%d-]+) ')
  age_us = queued_us and now_us - queued_us + (tonumber(age_us) or 0)
  return age_us and age_us < 1e15 and math.max(age_us, 0) or 0
end

local answer = {
  redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2]),
  redis.call('HLEN', KEYS[4]),
  string.format('%.0f', math.max(oldest_age_us(1), oldest_age_us(2))),
  redis.call('LLEN', KEYS[3]),
  string.format('%.0f', oldest_age_us(3)),
}
local counters = redis.call('HGETALL', KEYS[5])
for i = 1, #counters do answer[#answer + 1] = counters[i] end
return answer
