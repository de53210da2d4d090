-- Removes consumers that hold nothing: the one named, and those that were silent for long. Names are new
-- at every process start and would pile up. One that holds deliveries stays: removing it would lose them.
--
-- KEYS[1…] streams of the lanes
-- ARGV[1] group   ARGV[2] name, or ''   ARGV[3] ms of silence

for _, stream in ipairs(KEYS) do
  local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, ARGV[1])
  for _, info in ipairs(consumers.err and {} or consumers) do
    local fields = {}
    for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end
    local over = fields['name'] == ARGV[2] or fields['idle'] > tonumber(ARGV[3])
    if over and fields['pending'] == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], fields['name'])
    end
  end
end
return 1
