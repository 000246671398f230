-- Reads the stream after a cursor.
-- KEYS: stream
-- ARGV: id of the last entry read, '' = the stream was empty; count
-- Returns the clock, 1 if nothing is missing in between, the entries.

if not is(KEYS[1], 'stream') then return {str(clock()), 0, {}} end
if ARGV[1] == '' then
  return {str(clock()), 1 - redis.call('EXISTS', KEYS[1]), {}}
end
local found = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', tonumber(ARGV[2]) + 1)
if #found == 0 or found[1][1] ~= ARGV[1] then return {str(clock()), 0, {}} end
table.remove(found, 1)
return {str(clock()), 1, found}
