-- Adds events to the log of one request, and chunks to its reply topic, all or none.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] log   KEYS[4] feed   KEYS[5] reply topic
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] epoch   ARGV[5] length of the feed
-- ARGV[6] ms that a reply topic without new lines is kept   ARGV[7] number of events, which follow
-- ARGV behind these: number of fields and values that each chunk carries, these, and the chunks
-- Returns 1, or why not: LOST, OVERTAKEN

local refused = refusal(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
local last_event = 7 + tonumber(ARGV[7])
if last_event > 7 then write(KEYS[3], KEYS[4], ARGV[5], {unpack(ARGV, 8, last_event)}) end

-- A reply topic that takes no entry loses its chunks only: the line goes to the results of all (`emit`).
local first_field = last_event + 2
local last_field = first_field + tonumber(ARGV[last_event + 1]) - 1
for i = last_field + 1, #ARGV do
  local added = redis.pcall('XADD', KEYS[5], '*', 'body', ARGV[i], unpack(ARGV, first_field, last_field))
  if added.err then break end
  if i == #ARGV then redis.call('PEXPIRE', KEYS[5], ARGV[6]) end
end
return 1
