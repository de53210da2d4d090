-- Enters a consumer into the registry.
--
-- KEYS[1] registry   ARGV[1] consumer   ARGV[2] lease in ms, a blank, and what it says of itself

register(KEYS[1], ARGV[1], ARGV[2])
return 1
