-- swap_model: a model's record takes the place of the one that was read.
--
-- KEYS  1 models
-- ARGV  1 model name  2 the record that was read, or '' if there was none  3 its successor, or '' to delete it
--       4 the channel of changes
-- Returns 1, or 0 if the record has changed since
--
-- Race closed: two changes at a time cannot overwrite each other.

if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
redis.call('PUBLISH', ARGV[4], ARGV[1])
return 1
