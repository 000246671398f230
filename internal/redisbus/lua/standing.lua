-- Reads a part of the words that stand.
-- KEYS: words, stream
-- ARGV: cursor of the scan, count
-- Returns the clock, the stream's last id ('' = empty), the next cursor of the
-- scan, fields and records in turns.

local last = ''
if is(KEYS[2], 'stream') then
  local entry = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  if entry then last = entry[1] end
end
if not is(KEYS[1], 'hash') then return {str(clock()), last, '0', {}} end
local part = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return {str(clock()), last, part[1], part[2]}
