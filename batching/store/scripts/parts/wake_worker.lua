-- wake_worker: a part of the scripts that push on a queue; `loader.py` puts it in front of them.
--
-- A collector with an open window is told when its batch is full; otherwise one idle worker is woken
-- when the queues stop being empty. Busy workers look at the queues by themselves.

local function wake_worker(wakeups, collector_key, more_prefix, waiting, was_empty)
  local collector = redis.call('HMGET', collector_key, 'worker', 'limit')
  local name = collector[1] and more_prefix .. collector[1] or was_empty and wakeups
  if not name or collector[1] and waiting < tonumber(collector[2]) then return end
  if redis.call('LLEN', name) == 0 then
    redis.call('RPUSH', name, '1')
    redis.call('PEXPIRE', name, 60000)
  end
end

