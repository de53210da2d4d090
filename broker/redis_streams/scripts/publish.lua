-- Puts one request on the queue of its lane, unless its id is known.
--
-- KEYS[1] stream of the lane   KEYS[2] index of the request; without an id: what stands before the position
-- KEYS[3] parked messages   KEYS[4] set of pools
-- ARGV[1] body hash   ARGV[2] '1' with a request id, '0' without   ARGV[3] pool
-- ARGV[4…] fields and values of the entry
-- Returns {'added' | 'duplicate' | 'conflict', entry id or ''}

local stream, index = KEYS[1], KEYS[2]
if ARGV[2] == '1' then
  local known = redis.call('HMGET', index, 'hash', 'state', 'place', 'position')
  if known[1] and known[1] ~= ARGV[1] then return {'conflict', ''} end
  if known[1] and (known[2] == 'ended' or stands(known[3], known[4], KEYS[3])) then
    return {'duplicate', ''}
  end
end
return {'added', enqueue(stream, index, ARGV[1], ARGV[2] == '1', KEYS[4], ARGV[3], {unpack(ARGV, 4)})}
