-- Hands a delivery back: it goes to a holder that never renews, with a lease that lapsed long ago, so that
-- the next sweep of any consumer takes it, ahead of new work. The entry in the stream of releases wakes
-- those that wait and makes them sweep at once.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] log   KEYS[4] feed   KEYS[5] stream of releases
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] epoch   ARGV[5] event `handed`, '' for none
-- ARGV[6] length of the feed   ARGV[7] name of that holder
-- Returns 1, or why not: LOST, OVERTAKEN

local LONG_AGO = '100000000000'  -- ms; longer than any lease
local refused = refusal(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
if ARGV[5] ~= '' then write(KEYS[3], KEYS[4], ARGV[6], {ARGV[5]}) end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[7], 0, ARGV[3], 'IDLE', LONG_AGO, 'JUSTID')
redis.call('XADD', KEYS[5], 'MAXLEN', 1, '*', 'released', KEYS[1] .. '/' .. ARGV[3])
return 1
