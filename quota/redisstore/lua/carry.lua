-- Lets a counter that is not there yet begin with what another of the same rule
-- and unit counts, over another period: each cell at its last instant. The
-- other stays as it is.
--
-- KEYS: the counter, the slot's log, the slot's index, the counters to take
-- over from, the best first; the first that counts anything is taken.
-- ARGV: now (ms, 0 = server time), slack (ms of extra life for keys), period,
-- index member, then the period of each of the others.
-- Reply: 1 taken over, 0 nothing to do.

local now, slack = clock(ARGV[1]), tonumber(ARGV[2])
local period, member = tonumber(ARGV[3]), ARGV[4]

-- a*CELLS/b rounded down.
local function cellOf(a, b)
  local p = a * CELLS
  return (p - math.fmod(p, b)) / b
end

redo(KEYS[2])
if #redis.call('HGETALL', KEYS[1]) > 0 then return 0 end
for i = 4, #KEYS do
  local from = open(KEYS[i], tonumber(ARGV[i + 1]), now)
  local cells, some = {}, false
  for j = 1, #from.flat, 2 do
    local n = tonumber(from.flat[j + 1])
    local last = math.ceil((tonumber(from.flat[j]) + 1) * from.period / CELLS) - 1
    local cell = cellOf(math.min(last, now), period)
    if n > 0 and cell >= cellOf(now, period) - CELLS then
      cells[str(cell)] = math.min((cells[str(cell)] or 0) + n, LIMIT)
      some = true
    end
  end
  if some then
    local flat = {}
    for cell, n in pairs(cells) do
      flat[#flat + 1] = cell
      flat[#flat + 1] = str(n)
    end
    write('HSET', KEYS[1], unpack(flat))
    write('PEXPIRE', KEYS[1], str(span(period) + slack))
    note(member, now, span(period))
    index(KEYS[3], now, slack)
    commit(KEYS[2])
    return 1
  end
end
return 0
