-- Publishes a word if it is newer than the one that stands.
-- KEYS: words (hash: field -> record), ends (zset: field by over), stream
-- ARGV: field, seq, ttl in ms, word, channel, length of the stream, life of
--       the keys in ms, most words
-- Returns 1 published, 0 not newer, -1 full.

for i, kind in ipairs({'hash', 'zset', 'stream'}) do
  if not is(KEYS[i], kind) then redis.call('DEL', KEYS[i]) end
end
local now = clock()
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', str(now), 'LIMIT', 0, 64)
if #gone > 0 then
  redis.call('HDEL', KEYS[1], unpack(gone))
  redis.call('ZREM', KEYS[2], unpack(gone))
end

local old = redis.call('HGET', KEYS[1], ARGV[1])
if old then
  local over, seq = string.match(old, '^(%d+) (%d+) ')
  over = tonumber(over)
  -- A record that would outlive the keys is garbage.
  if over and over > now and over <= now + tonumber(ARGV[7]) and tonumber(seq) >= tonumber(ARGV[2]) then
    return 0
  end
elseif redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[8]) then
  return -1
end

local over = str(now + tonumber(ARGV[3]))
local record = over .. ' ' .. ARGV[2] .. ' ' .. ARGV[4]
redis.call('HSET', KEYS[1], ARGV[1], record)
redis.call('ZADD', KEYS[2], over, ARGV[1])
local added = redis.pcall('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'w', record)
if type(added) == 'table' and added.err then -- somebody used up the ids
  redis.call('DEL', KEYS[3])
  redis.call('XADD', KEYS[3], '*', 'w', record)
end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ARGV[7]) end
redis.pcall('PUBLISH', ARGV[5], '') -- only wakes: a user without the right goes without
return 1
