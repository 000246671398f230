-- Tries the commands that the scripts use, on a key that is a string: a right
-- that the user lacks is refused before the type of the key is looked at.
--
-- KEYS: the key. ARGV: its life (ms).
-- Reply: the commands that the user may not run; all else that is wrong with
--       the server is the error.

local function denied(text)
  return string.find(text, 'NOPERM', 1, true) or string.find(text, "can't run this command", 1, true)
    or string.find(text, "can't access", 1, true)
end

local missing = {}
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return end
  if denied(answer.err) then
    missing[#missing + 1] = string.lower((...))
  elseif not string.find(answer.err, 'WRONGTYPE', 1, true) then
    return error(answer.err, 0)
  end
end

local key = KEYS[1]
try('SET', key, '', 'PX', ARGV[1])
try('TIME')
try('GET', key)
try('PTTL', key)
try('PEXPIRE', key, ARGV[1])
try('HGETALL', key)
try('HGET', key, '0')
if redis.call('EXISTS', key) == 1 then try('HSET', key, '0', '0') end -- it makes no key that stays
try('HDEL', key, '0')
try('ZADD', key, 'XX', '0', '0')
try('ZREM', key, '0')
try('ZSCORE', key, '0')
try('ZCOUNT', key, '-inf', '+inf')
try('ZRANGE', key, '0', '-1')
try('ZREMRANGEBYSCORE', key, '-inf', '0')
try('DEL', key)
return missing
