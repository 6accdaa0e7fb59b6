-- answer_job: a part of `reply`: the answer stays with its job.
--
-- `value` is the result with '+' in front if the job succeeded and '-' if it failed; a large one ('@') is in
-- <large prefix><id>:<attempt>-<worker id>: a retry counts the attempts of a job from 0 again, and a worker
-- of an earlier attempt may still answer. `code` is reply's, before it has looked at the job.
-- Returns the code, and whether the job keeps the answer.

local function answer_job(prefix, open_key, body_key, large_prefix, id, attempt, worker_id, value, code)
  local name, owner, result = prefix .. id, attempt .. '-' .. worker_id, string.sub(value, 2)
  local is_large = result == '@'
  if is_large then result = id .. '@' .. owner end
  local is_kept = false
  if code == 1 then
    local time = redis.call('TIME')
    local status = string.sub(value, 1, 1) == '+' and 'succeeded' or 'failed'
    is_kept = finish_job(prefix, open_key, body_key, id, status, result, time[1] * 1000 + math.floor(time[2] / 1000))
  elseif code == 0 and is_large and redis.call('HGET', name, 'result') == result then
    code = 2 -- written once more
  end
  if is_large and (is_kept or code == 2) then
    redis.call('PEXPIRE', large_prefix .. id .. ':' .. owner, math.max(1, redis.call('PTTL', name)))
  elseif is_large then
    redis.call('DEL', large_prefix .. id .. ':' .. owner)
  end
  return code, is_kept
end

