-- Renews leases, each only if it is still this consumer's, and its entry in the registry. JUSTID: a renewal
-- is no delivery.
--
-- KEYS[1] retry set   KEYS[2] parked messages   KEYS[3] registry   KEYS[4…] stream of each delivery
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] what the registry shall say of it, '' for nothing
-- ARGV[4…] entry id of each delivery
-- Returns the numbers, from 1, of the deliveries that were lost

local lost = {}
for i = 1, #KEYS - 3 do
  local stream, id = KEYS[i + 3], ARGV[i + 3]
  if owns(stream, ARGV[1], ARGV[2], id) then
    redis.call('XCLAIM', stream, ARGV[1], ARGV[2], 0, id, 'JUSTID')
  else
    lost[#lost + 1] = i
  end
end
-- Behind the renewals: these take memory, and a server that is full refuses the first write of a script only.
-- So leases are kept as long as it answers, and others do not take what runs here.
forward_due(KEYS[1], KEYS[2], 100)
register(KEYS[3], ARGV[2], ARGV[3])
return lost
