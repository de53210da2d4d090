-- Parks a delivery until its time comes, by the server's clock; it keeps its position.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] retry set   KEYS[4] parked messages
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] epoch   ARGV[5] position   ARGV[6] delay in ms
-- Returns 1, or why not: LOST, OVERTAKEN

local stream, index, position = KEYS[1], KEYS[2], ARGV[5]
local refused = refusal(stream, index, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end

local entry = redis.call('XRANGE', stream, ARGV[3], ARGV[3])[1]
if entry then
  local message = {stream = stream, index = index, fields = sent_fields(entry)}
  redis.call('HSET', KEYS[4], position, cmsgpack.pack(message))
  redis.call('ZADD', KEYS[3], now_ms() + tonumber(ARGV[6]), position)
  if redis.call('HGET', index, 'position') == position then
    redis.call('HSET', index, 'place', 'retry')
  end
end
acknowledge(stream, ARGV[1], ARGV[3])
return 1
