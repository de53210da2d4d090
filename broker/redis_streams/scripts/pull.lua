-- Takes deliveries for one consumer: per lane, in the order given, lapsed ones first, then new ones.
--
-- KEYS[1] retry set   KEYS[2] parked messages   KEYS[3] stream of releases   KEYS[4…] streams of the lanes
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] how many   ARGV[4] lease in ms   ARGV[5] last release seen
-- ARGV[6…] per lane: where the sweep for lapsed deliveries goes on, '' for no sweep now
-- ARGV behind these: places ("stream/entry") that the consumer holds; needed where a sweep is due
-- Returns {taken, cursors, all swept (1/0), last release, next due in ms or -1, last delivered ids}
--   taken: {number of the lane from 1, entry id, fields, 1 if another consumer had it}

local LOOK = 100  -- pending entries looked at in one step of a sweep
local group, consumer, room, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local lanes = #KEYS - 3
local taken, cursors, delivered, held, all_swept = {}, {}, {}, {}, 1
for i = lanes + 6, #ARGV do held[ARGV[i]] = true end

local next_due = forward_due(KEYS[1], KEYS[2], 100)
local release = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
release = release and release[1] or '0-0'

local function take(lane, entries, claimed)
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      taken[#taken + 1] = {lane, entry[1], entry[2], claimed}
      room = room - 1
    end
  end
end

-- As XAUTOCLAIM, but it neither renews nor returns what this consumer holds itself: who has stopped its
-- heartbeats, but not its pulls, must lose its deliveries all the same.
--
-- Goes on behind `cursor` ('0-0': from the start). Returns where to go on, and whether the round is complete.
local function sweep(lane, stream, cursor)
  while room > 0 do
    local start = cursor == '0-0' and '-' or '(' .. cursor
    local lapsed = redis.call('XPENDING', stream, group, 'IDLE', lease, start, '+', LOOK)
    for _, pending in ipairs(lapsed) do
      if room <= 0 then return cursor, false end
      cursor = pending[1]
      if pending[2] ~= consumer or not held[stream .. '/' .. cursor] then
        take(lane, redis.call('XCLAIM', stream, group, consumer, lease, cursor), 1)
      end
    end
    if #lapsed < LOOK then return '0-0', true end
  end
  return cursor, false
end

for lane = 1, lanes do
  local stream, cursor = KEYS[lane + 3], ARGV[lane + 5]
  if cursor == '' and release ~= ARGV[5] then cursor = '0-0' end
  local complete = cursor == ''
  if not complete then cursor, complete = sweep(lane, stream, cursor) end
  if not complete then all_swept = 0 end
  cursors[lane] = cursor
  if room > 0 then
    local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', room, 'STREAMS', stream, '>')
    if new then take(lane, new[1][2], 0) end
  end
end

if #taken == 0 then
  for lane = 1, lanes do
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[lane + 3])) do
      local fields = {}
      for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end
      if fields['name'] == group then delivered[lane] = fields['last-delivered-id'] end
    end
  end
end
local wait = next_due and math.max(0, next_due - now_ms()) or -1
return {taken, cursors, all_swept, release, wait, delivered}
