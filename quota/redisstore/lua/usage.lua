-- Reads counters of one slot.
--
-- KEYS: the counters. ARGV: now (ms, 0 = server time), then the period of each
-- (ms, 0 = concurrency). Reply: what each counts now.

local now, used = clock(ARGV[1]), {}
for i = 1, #KEYS do
  local period = tonumber(ARGV[i + 1])
  if period == 0 then
    used[i] = str(redis.call('ZCOUNT', KEYS[i], '(' .. str(now), '+inf'))
  else
    used[i] = str(open(KEYS[i], period, now).used)
  end
end
return used
