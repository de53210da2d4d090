-- The registry. An entry is "<unix ms of the last sign of life> <lease in ms> <what the consumer says>".
-- Those that were silent for longer than their lease are left out and removed; who wakes writes its own
-- anew.
--
-- KEYS[1] registry
-- Returns {name, ms of silence, what it says} of each

local found, now = {}, now_ms()
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local seen, lease, says = string.match(entries[i + 1], '^(%d+) (%d+) (.*)$')
  local idle = seen and math.max(0, now - tonumber(seen))
  if seen and idle <= tonumber(lease) then
    found[#found + 1] = {entries[i], idle, says}
  else
    redis.call('HDEL', KEYS[1], entries[i])
  end
end
return found
