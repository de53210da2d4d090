-- Settles a delivery as done: terminal record, result line and acknowledgement in one step.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] log   KEYS[4] feed   KEYS[5] topic of the line   KEYS[6] results
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] epoch
-- ARGV[5…] as `read_conclusion` takes them
-- Returns 1, or why not: LOST, OVERTAKEN

local refused, state = refusal(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
conclude(read_conclusion(5), state, KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
acknowledge(KEYS[1], ARGV[1], ARGV[3])
return 1
