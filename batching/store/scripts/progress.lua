-- progress: the handlers' progress with jobs is kept for clients that ask.
--
-- KEYS  1 lease  2 job prefix
-- ARGV  per job: id, attempt, its progress (job_records.py)
-- Returns an array, one code per job: 1 kept   0 not: the job has ended, or another attempt runs
--
-- Race closed: only the owner of a running job can write its progress, so that nothing comes after its
-- end, or from an older attempt; whatever ends an attempt deletes its progress.

local codes = {}
for i = 1, #ARGV, 3 do
  local name = KEYS[2] .. ARGV[i]
  local known = redis.call('HMGET', name, 'keep_ms', 'status')
  local is_running = known[1] and not known[2] and redis.call('LPOS', KEYS[1], ARGV[i] .. ':' .. ARGV[i + 1])
  if is_running then redis.call('HSET', name, 'progress', ARGV[i + 2]) end
  codes[#codes + 1] = is_running and 1 or 0
end
return codes
