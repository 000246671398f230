-- What all scripts share. A record is "over seq word": when its word is over,
-- in ms of the server's clock, and its seq, so that no script reads JSON.

local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Lua's own way of writing a number rounds to 14 digits.
local function str(n) return string.format('%.0f', n) end

-- Whether a key holds what we keep there; nothing counts as such.
local function is(key, kind)
  local t = redis.call('TYPE', key).ok
  return t == kind or t == 'none'
end
