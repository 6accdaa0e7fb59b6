-- report: everybody sees the state of a worker, or of a node.
--
-- KEYS  1 workers, or nodes (hash)
-- ARGV  1 its id  2 its status as JSON  and of a worker: 3 channel of changes  4 model name
-- Returns 1.
--
-- HDEL comes first: at maxmemory a script may go on after a first write that needs no memory, while a
-- plain HSET would be refused, and the replaced worker would be missing from every list. This HDEL
-- changes nothing: to delete the last field, and write it again, would remove an unregistered version's
-- TTL.

redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if ARGV[3] then redis.call('PUBLISH', ARGV[3], ARGV[4]) end
return 1
