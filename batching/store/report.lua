-- report: everybody sees the worker's state.
--
-- KEYS  1 workers (hash)
-- ARGV  1 worker id  2 WorkerStatus as JSON  3 channel of changes  4 model name
-- Returns 1.
--
-- HDEL comes first: at maxmemory a script may go on after a first write that frees memory, while a
-- plain HSET would be refused and a worker that was replaced would be missing from every list.

redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
