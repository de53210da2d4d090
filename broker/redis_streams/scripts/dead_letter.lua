-- Moves a delivery to the dead letters, its fields untouched behind `reason` and `origin`.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] log   KEYS[4] feed   KEYS[5] topic of the line   KEYS[6] results
-- KEYS[7] dead letters
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] epoch   ARGV[5] reason   ARGV[6] origin
-- ARGV[7…] as `read_conclusion` takes them
-- Returns 1, or why not: LOST, OVERTAKEN

local MOST_VALUES = 4000  -- unpack is bounded; more are kept packed in one field, and the body beside it
local refused, state = refusal(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
local end_of = read_conclusion(7)

local entry = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
local fields = sent_fields(entry)
if #fields > MOST_VALUES then
  local body
  for i = 1, #fields, 2 do
    if fields[i] == 'body' then body = fields[i + 1] end
  end
  fields = {'msgpack', cmsgpack.pack(fields), body and 'body', body}
end
redis.call('XADD', KEYS[7], '*', 'reason', ARGV[5], 'origin', ARGV[6], unpack(fields))
conclude(end_of, state, KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
acknowledge(KEYS[1], ARGV[1], ARGV[3])
return 1
