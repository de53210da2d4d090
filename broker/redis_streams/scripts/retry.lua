-- Parks a delivery until its time comes, by the server's clock; it keeps its position.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] log   KEYS[4] feed   KEYS[5] retry set   KEYS[6] parked messages
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] epoch   ARGV[5] event `handed`, '' for none
-- ARGV[6] length of the feed   ARGV[7] position   ARGV[8] delay in ms
-- Returns 1, or why not: LOST, OVERTAKEN

local stream, index, position = KEYS[1], KEYS[2], ARGV[7]
local refused = refusal(stream, index, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
local due = now_ms() + tonumber(duration(ARGV[8]))

local entry = redis.call('XRANGE', stream, ARGV[3], ARGV[3])[1]
if entry then
  if ARGV[5] ~= '' then write(KEYS[3], KEYS[4], ARGV[6], {ARGV[5]}) end
  local message = {stream = stream, index = index, fields = sent_fields(entry)}
  redis.call('HSET', KEYS[6], position, cmsgpack.pack(message))
  redis.call('ZADD', KEYS[5], due, position)
  if redis.call('HGET', index, 'position') == position then
    redis.call('HSET', index, 'place', 'retry')
  end
end
acknowledge(stream, ARGV[1], ARGV[3])
return 1
