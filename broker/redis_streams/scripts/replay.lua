-- Turns a dead letter into a new request on its lane, and discards it, in one step.
--
-- KEYS[1] dead letters   KEYS[2] stream of the lane   KEYS[3] index of the new request
-- KEYS[4] set of pools
-- ARGV[1] entry id of the letter   ARGV[2] body hash   ARGV[3] pool   ARGV[4…] fields and values of the entry
-- Returns 1, or 0 where there is no such letter any more

if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
enqueue(KEYS[2], KEYS[3], ARGV[2], true, KEYS[4], ARGV[3], {unpack(ARGV, 4)})  -- first: a lane may take no entry
redis.call('XDEL', KEYS[1], ARGV[1])
return 1
