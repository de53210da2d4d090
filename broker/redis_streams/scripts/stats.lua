-- One consistent look at the queue. Never XINFO's lag: it is null after any XDEL.
--
-- KEYS[1] retry set   KEYS[2] dead letters   KEYS[3] set of paused lanes   KEYS[4…] streams of the lanes
-- ARGV[1] group   ARGV[2] name that holds released deliveries: these wait, nobody works on them
-- Returns {retrying, dead letters, lanes}
--   lanes, each: {waiting, leased, age of the oldest waiting in ms, leases, 1 if it is paused}
--   leases: {consumer, held, idle ms}

local function pairs_of(info)
  local fields = {}
  for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end
  return fields
end

local function group_of(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return nil end
  for _, info in ipairs(groups) do
    local fields = pairs_of(info)
    if fields['name'] == ARGV[1] then return fields end
  end
end

-- Behind the last id that there can be, the server takes no interval.
local function oldest_age(stream, from)
  local entries = redis.pcall('XRANGE', stream, from, '+', 'COUNT', 1)
  local entry = not entries.err and entries[1]
  return entry and math.max(0, now_ms() - tonumber(string.match(entry[1], '^%d+'))) or 0
end

local function lane_stats(stream)
  local group, length = group_of(stream), redis.call('XLEN', stream)
  if not group then return {length, 0, oldest_age(stream, '-'), {}} end
  local released, leases, age = 0, {}, oldest_age(stream, '(' .. group['last-delivered-id'])
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, ARGV[1])) do
    local fields = pairs_of(info)
    if fields['name'] == ARGV[2] then
      released = fields['pending']
    elseif fields['pending'] > 0 then
      leases[#leases + 1] = {fields['name'], fields['pending'], fields['idle']}
    end
  end
  if released > 0 then
    local first = redis.call('XPENDING', stream, ARGV[1], '-', '+', 1, ARGV[2])[1]
    age = math.max(age, oldest_age(stream, first[1]))
  end
  local leased = group['pending'] - released
  -- What a client deleted, or trimmed away, while it was leased is pending still, and in the stream no more.
  return {math.max(0, length - leased), leased, age, leases}
end

local lanes = {}
for i = 4, #KEYS do
  local lane = lane_stats(KEYS[i])
  lane[5] = redis.call('SISMEMBER', KEYS[3], KEYS[i])
  lanes[i - 3] = lane
end
return {redis.call('ZCARD', KEYS[1]), redis.call('XLEN', KEYS[2]), lanes}
