-- Marks a request as cancelled and tells the consumers.
--
-- KEYS[1] index   KEYS[2] control stream
-- ARGV[1] tenant   ARGV[2] request id   ARGV[3] length of the control stream
-- ARGV[4] ms that a mark for an unknown id lives
-- Returns 'marked', 'ended' or 'unknown'

local keep_mark = duration(ARGV[4])
local known = redis.call('HMGET', KEYS[1], 'hash', 'state')
if known[2] == 'ended' then return 'ended' end
redis.call('HSET', KEYS[1], 'cancelled', string.format('%.0f', now_ms()))
if not known[1] then redis.call('PEXPIRE', KEYS[1], keep_mark) end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'cancel', ARGV[2], 'tenant', ARGV[1])
return known[1] and 'marked' or 'unknown'
