-- drop_large_result: a part of the scripts that delete a job's result; `loader.py` puts it in front of
-- them.

local function drop_large_result(large_prefix, id, result)
  if result and string.sub(result, 1, #id + 1) == id .. '@' then
    redis.call('DEL', large_prefix .. id .. ':' .. string.sub(result, #id + 2))
  end
end

