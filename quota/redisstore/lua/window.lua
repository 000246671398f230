-- What all scripts share. A window is a hash: cell number -> count. The
-- arithmetic is that of quota.Window, exact below 2^53 although Lua's numbers
-- are doubles: quotients come from math.fmod, which never rounds.

local LIMIT = 9007199254740991 -- 2^53-1, quota.MaxCount
local CELLS = 30

-- Numbers become text here and nowhere else: Lua's own way rounds to 14 digits.
local function str(n) return string.format('%.0f', n) end

-- Milliseconds: the caller's, or the server's for 0.
local function clock(arg)
  local now = tonumber(arg)
  if now > 0 then return now end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- a*b/c rounded up, for a < 2^53 and b <= c < 2^32.
local function part(a, b, c)
  local m = math.fmod(a, c)
  local high = math.floor(m / 65536)
  local low = m - high * 65536
  local x = high * b
  local xr = math.fmod(x, c)
  local y = xr * 65536 + low * b
  local yr = math.fmod(y, c)
  local n = (a - m) / c * b + (x - xr) / c * 65536 + (y - yr) / c
  if yr > 0 then n = n + 1 end
  return n
end

-- The state of a window at an instant: its present cell and that cell's count
-- (nil if it has none), the use, and the raw cells. Time that went back counts as the
-- start of the newest cell; a newest cell more than a period ahead was
-- written by a broken clock and the window counts as empty.
local function open(key, period, now)
  local p = now * CELLS
  local f = math.fmod(p, period)
  local w = {key = key, period = period, cell = (p - f) / period, used = 0, raw = redis.call('HGETALL', key)}
  w.flat = w.raw
  local left, head = period - f, 0
  for i = 1, #w.flat, 2 do head = math.max(head, tonumber(w.flat[i])) end
  if head > w.cell + CELLS then
    w.broken, w.flat = true, {}
  elseif head > w.cell then
    w.cell, left = head, period
  end
  for i = 1, #w.flat, 2 do
    local c, n = tonumber(w.flat[i]), tonumber(w.flat[i + 1])
    if c > w.cell - CELLS then
      w.used = w.used + n
    elseif c == w.cell - CELLS then
      w.used = w.used + part(n, left, period)
    end
    if c == w.cell then w.now = n end
  end
  w.used = math.min(w.used, LIMIT)
  return w
end

-- How long a window's counts matter, in milliseconds.
local function span(period) return math.ceil(period / CELLS) + period + 1 end

-- The counters to be noted in their slot's index, and for how long.
local noted, noted_life = {}, 0

-- Notes a counter in its slot's index until it counts nothing any more, and
-- by the slack longer, for clocks that go back.
local function note(member, now, life)
  noted[#noted + 1] = str(now + life)
  noted[#noted + 1] = member
  noted_life = math.max(noted_life, life)
end

-- Writes what was noted. The index outlives every counter in it.
local function index(key, now, slack)
  if #noted == 0 then return end
  write('ZADD', key, unpack(noted))
  write('ZREMRANGEBYSCORE', key, '-inf', str(now - slack))
  if redis.call('PTTL', key) < noted_life + slack then
    write('PEXPIRE', key, str(noted_life + slack))
  end
end

-- Counts n in the window's present cell. The first count of a cell drops the
-- cells that left, or all that a broken clock wrote, and renews the key's life
-- and its place in the index.
local function add(w, n, member, now, slack)
  write('HSET', w.key, str(w.cell), str(math.min((w.now or 0) + n, LIMIT)))
  if not w.now then
    local gone = {}
    for i = 1, #w.raw, 2 do
      local c = tonumber(w.raw[i])
      if c ~= w.cell and (w.broken or c < w.cell - CELLS) then gone[#gone + 1] = w.raw[i] end
    end
    if #gone > 0 then write('HDEL', w.key, unpack(gone)) end
    write('PEXPIRE', w.key, str(span(w.period) + slack))
    note(member, now, span(w.period))
  end
  return w.cell
end

-- A request's record: when its reservation ends, whether it is settled, the
-- use that was answered, and by key the cell and the amount that it took.
local function read(key)
  local text = redis.call('GET', key)
  if not text then return nil end
  local flat = cjson.decode(text)
  local r = {deadline = tonumber(flat[1]), settled = flat[2] == '1', used = flat[3]}
  for i = 4, #flat, 2 do r[flat[i]] = flat[i + 1] end
  return r
end
