-- Adds events to the log of one request, all or none.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] log   KEYS[4] feed
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] epoch   ARGV[5] length of the feed
-- ARGV[6…] events
-- Returns 1, or why not: LOST, OVERTAKEN

local refused = refusal(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
write(KEYS[3], KEYS[4], ARGV[5], {unpack(ARGV, 6)})
return 1
