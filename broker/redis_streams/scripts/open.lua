-- Fences a delivery: from here on nothing of an older epoch enters its log, so a read after this call
-- is the answer so far, exactly.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] log   KEYS[4] parked messages
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] position   ARGV[5] body hash
-- ARGV[6] unix ms of the first publish   ARGV[7] most entries of the log to return
-- Returns {outcome, epoch, cancelled (1/0), unix ms, the log's first entries}

local index, position, place = KEYS[2], ARGV[4], KEYS[1] .. '/' .. ARGV[3]
local now = now_ms()
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then return {'lost', 0, 0, now, {}} end

local known = redis.call('HMGET', index, 'hash', 'state', 'position', 'place', 'cancelled')
if known[1] and known[1] ~= ARGV[5] then return {'conflict', 0, 0, now, {}} end
if known[2] == 'ended' then return {'ended', 0, 0, now, {}} end
-- Its place tells the one that runs: a position can be copied, with all fields of a retried entry.
if known[4] and known[4] ~= place and stands(known[4], known[3], KEYS[4]) then
  return {'twin', 0, 0, now, {}}
end

-- Where the index knew of this delivery, its publish has wiped older marks; the time decides for others only,
-- since entry ids run ahead of a clock that was set back.
local cancelled = known[5] and (known[3] == position or tonumber(known[5]) >= tonumber(ARGV[6]))
local as_published = known[1] and known[2] and known[3] == position and known[4] == place and not known[5]
if not as_published then
  if not cancelled then redis.call('HDEL', index, 'cancelled') end
  redis.call('HSET', index, 'hash', ARGV[5], 'state', 'open', 'position', position, 'place', place)
  redis.call('PERSIST', index)
end
local epoch = redis.call('HINCRBY', index, 'epoch', 1)
local log = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', ARGV[7])
if #log > 0 then redis.call('PERSIST', KEYS[3]) end
return {'run', epoch, cancelled and 1 or 0, now, log}
