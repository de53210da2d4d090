-- Takes deliveries for one consumer, share by share (see broker/lanes.py): lapsed ones of the share's lane
-- first, then new ones. A paused lane gives neither.
--
-- KEYS[1] retry set   KEYS[2] parked messages   KEYS[3] stream of releases   KEYS[4] set of paused lanes
-- KEYS[5…] streams of the lanes
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] lease in ms   ARGV[4] last release seen
-- ARGV[5] number of shares
-- ARGV[6…] per share: number of its lane from 1, most from it, how many there may be from all lanes then
-- ARGV behind these, per lane: where the sweep for lapsed deliveries goes on, '' for no sweep now
-- ARGV behind these: places ("stream/entry") that the consumer holds; needed where a sweep is due
-- Returns {taken, sweeps, last release, next due in ms or -1, last delivered ids}
--   taken: {number of the lane from 1, entry id, fields, 1 if another consumer had it}
--   sweeps, per lane: '' none was due, 'due' one is and could not begin, '0-0' complete, or where to go on
--   last delivered ids, per lane: where there will be something to wait for; '' not asked, or paused

local LOOK = 100  -- pending entries looked at in one step of a sweep
local START, LAST = '0-0', '18446744073709551615-18446744073709551615'
local group, consumer, lease = ARGV[1], ARGV[2], duration(ARGV[3])
local lanes, shares = #KEYS - 4, tonumber(ARGV[5])
local first_cursor = 6 + 3 * shares
local taken, held, go_on, due, complete, asked = {}, {}, {}, {}, {}, {}
local knows_held = false
for i = first_cursor + lanes, #ARGV do held[ARGV[i]] = true end

-- A stream may have been deleted, and its group with it. That is told before anything is taken: of what a script
-- takes that breaks off nobody hears before its lease lapses.
for lane = 1, lanes do
  local known = redis.pcall('XPENDING', KEYS[lane + 4], group, '-', '+', 1, consumer)
  if known.err then return known end
end

local next_due = forward_due(KEYS[1], KEYS[2], 100)
local release = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
release = release and release[1] or START

for lane = 1, lanes do
  local cursor = ARGV[first_cursor + lane - 1]
  due[lane] = cursor ~= ''
  knows_held = knows_held or due[lane]
  if release ~= ARGV[4] then cursor = START end  -- what was released may stand before it
  go_on[lane] = cursor ~= '' and cursor or nil
end

-- Returns how many there were.
local function take(lane, entries, claimed)
  local before = #taken
  for _, entry in ipairs(entries) do
    if entry and entry[2] then taken[#taken + 1] = {lane, entry[1], entry[2], claimed} end
  end
  return #taken - before
end

-- As XAUTOCLAIM, but it neither renews nor returns what this consumer holds itself: who has stopped its
-- heartbeats, but not its pulls, must lose its deliveries all the same. What it holds it tells where a sweep is
-- due; one for the sake of a release takes from others only, and is no round. Returns the room that is left.
local function sweep(lane, stream, room)
  while room > 0 and go_on[lane] do
    local start = go_on[lane] == START and '-' or '(' .. go_on[lane]
    local lapsed = redis.call('XPENDING', stream, group, 'IDLE', lease, start, '+', LOOK)
    for _, pending in ipairs(lapsed) do
      if room <= 0 then return 0 end
      go_on[lane] = pending[1]
      if pending[2] ~= consumer or (knows_held and not held[stream .. '/' .. pending[1]]) then
        room = room - take(lane, redis.call('XCLAIM', stream, group, consumer, lease, pending[1]), 1)
      end
    end
    if #lapsed < LOOK or go_on[lane] == LAST then  -- behind the last id that there can be is no interval
      go_on[lane], complete[lane] = nil, true
    end
  end
  return room
end

local function serve(lane, stream, room)
  room = sweep(lane, stream, room)
  if room <= 0 then return end
  local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', room, 'STREAMS', stream, '>')
  if new then take(lane, new[1][2], 0) end
end

for share = 1, shares do
  local at = 6 + 3 * (share - 1)
  local lane, at_most, room = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]) - #taken
  local stream = KEYS[lane + 4]
  if redis.call('SISMEMBER', KEYS[4], stream) == 0 then
    asked[lane] = true
    serve(lane, stream, math.min(at_most, room))
  end
end

local function last_delivered(stream)
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local fields = {}
    for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end
    if fields['name'] == group then return fields['last-delivered-id'] end
  end
  return ''
end

local sweeps, delivered = {}, {}
for lane = 1, lanes do
  sweeps[lane] = complete[lane] and due[lane] and START or go_on[lane] or ''
  if go_on[lane] == START then sweeps[lane] = 'due' end
  if #taken == 0 then delivered[lane] = asked[lane] and last_delivered(KEYS[lane + 4]) or '' end
end
local wait = next_due and math.max(0, next_due - now_ms()) or -1
return {taken, sweeps, release, wait, delivered}
