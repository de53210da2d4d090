-- Adds events to the logs of requests, and chunks to their reply topics: of each request all or none. Many in
-- one step, so that a gateway that waits for their feeds wakes up once, for all of them.
--
-- KEYS: of each request stream, index, log, feed, reply topic
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] length of a feed
-- ARGV[4] ms that a reply topic without new lines is kept
-- ARGV behind these: of each request entry id, epoch, and three lists, each behind its length: events, fields
-- and values that each chunk carries, chunks
-- Returns of each request 1, or why not: LOST, OVERTAKEN

local at, keep_topic = 5, duration(ARGV[4])

local function next_list()
  local first, last = at + 1, at + tonumber(ARGV[at])
  at = last + 1
  return first, last
end

-- A reply topic that takes no entry loses its chunks only: the line goes to the results of all (`emit`).
local function emit_chunks(topic, first, last, first_field, last_field)
  for i = first, last do
    local added = redis.pcall('XADD', topic, '*', 'body', ARGV[i], unpack(ARGV, first_field, last_field))
    if added.err then return end
  end
  if last >= first then redis.call('PEXPIRE', topic, keep_topic) end
end

local answers = {}
for key = 1, #KEYS, 5 do
  local stream, index, log, feed, topic = unpack(KEYS, key, key + 4)
  local id, epoch = ARGV[at], ARGV[at + 1]
  at = at + 2
  local first_event, last_event = next_list()
  local first_field, last_field = next_list()
  local first_chunk, last_chunk = next_list()
  local refused = refusal(stream, index, ARGV[1], ARGV[2], id, epoch)
  if not refused then
    if last_event >= first_event then
      write(log, feed, ARGV[3], {unpack(ARGV, first_event, last_event)})
    end
    emit_chunks(topic, first_chunk, last_chunk, first_field, last_field)
  end
  answers[#answers + 1] = refused or 1
end
return answers
