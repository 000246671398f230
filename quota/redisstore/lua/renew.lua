-- Renews a replica's units of one concurrency counter.
--
-- KEYS: the counter. ARGV: life (ms from now, by the server's clock), ids.
-- Reply: the numbers of the ids that the counter does not hold: settled
--       meanwhile, over, or lost. They are not made anew here, since one that
--       was settled must not count again.

local over = string.format('%.0f', clock('0') + tonumber(ARGV[1]))
local units = {}
for i = 2, #ARGV do
  units[#units + 1] = over
  units[#units + 1] = ARGV[i]
end
local absent = {}
if redis.call('ZADD', KEYS[1], 'XX', 'CH', unpack(units)) < #ARGV - 1 then
  for i = 2, #ARGV do
    if redis.call('ZSCORE', KEYS[1], ARGV[i]) ~= over then absent[#absent + 1] = i - 1 end
  end
end
return absent
