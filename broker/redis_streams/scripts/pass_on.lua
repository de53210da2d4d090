-- Hands a delivery on to the queue of another pool, in one step; it keeps its position, index and log.
--
-- KEYS[1] stream   KEYS[2] index   KEYS[3] log   KEYS[4] feed   KEYS[5] stream of the other pool
-- KEYS[6] set of pools
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id   ARGV[4] epoch   ARGV[5] position
-- ARGV[6] the other pool   ARGV[7] event `handed`   ARGV[8] event `moved`   ARGV[9] length of the feed
-- Returns 1, or why not: LOST, OVERTAKEN

local refused = refusal(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end

local entry = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
if entry then
  local failed = requeue(KEYS[5], KEYS[2], ARGV[5], sent_fields(entry))
  if failed then return failed end
  write(KEYS[3], KEYS[4], ARGV[9], {ARGV[7], ARGV[8]})
  if ARGV[6] ~= '' then redis.call('SADD', KEYS[6], ARGV[6]) end
end
acknowledge(KEYS[1], ARGV[1], ARGV[3])
return 1
