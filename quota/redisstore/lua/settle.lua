-- Replaces what an id holds in one slot by its final amount, once (T8).
--
-- KEYS: the id's record, the slot's log, the slot's index, the counters, those
--       that took over from them.
-- ARGV: mode (settle; undo: as if it had never been reserved), now (ms, 0 =
--       server time), id, keep (ms for which the settled id is remembered),
--       slack (ms of extra life for keys), then for each counter: period (ms,
--       0 = concurrency), final amount, or "of" and the number of the counter
--       that it took over from, index member.
-- Reply: state (0 the id holds nothing, 1 settled), how many cells that
--       should have been there were not (evicted, or lost in a fail-over).

local mode, now, id = ARGV[1], clock(ARGV[2]), ARGV[3]
local keep, slack = tonumber(ARGV[4]), tonumber(ARGV[5])

redo(KEYS[2])
local record = read(KEYS[1])
if not record or record.settled or record.deadline <= now then return {0, 0} end

-- What an id gave back goes to the cell it was taken from; a cell that is
-- gone is not brought back.
local function refund(key, period, cell, n)
  local old = redis.call('HGET', key, cell)
  if not old then
    return (tonumber(cell) + CELLS + 1) * period > now * CELLS
  end
  local new = math.max(tonumber(old) - n, 0)
  if new == 0 and mode == 'undo' then
    write('HDEL', key, cell)
  else
    write('HSET', key, cell, str(new))
  end
  return false
end

-- What an id takes beyond its reservation counts also where its counter was
-- taken over; what it gives back stays there, since the reservation may have
-- been made after that. One that has nothing yet takes over all of it later.
local function inherit(key, period, parent, member)
  local amount = string.match(record[KEYS[parent + 3]] or '', ' (%d+)$')
  if not amount then return end
  local more = tonumber(ARGV[5 + (parent - 1) * 3 + 2]) - tonumber(amount)
  if more <= 0 then return end
  local w = open(key, period, now)
  if #w.raw > 0 then add(w, more, member, now, slack) end
end

local lost = 0
for i = 1, #KEYS - 3 do
  local key, at = KEYS[i + 3], 5 + (i - 1) * 3
  local period, final, member = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
  local cell, amount = string.match(record[key] or '', '^(%d+) (%d+)$')
  if not final then
    inherit(key, period, tonumber(string.sub(ARGV[at + 2], 4)), member)
  elseif cell and period == 0 then
    write('ZREM', key, id)
  elseif cell then
    local more = final - tonumber(amount)
    if more > 0 then
      add(open(key, period, now), more, member, now, slack)
    elseif more < 0 and refund(key, period, cell, -more) then
      lost = lost + 1
    end
  end
end
index(KEYS[3], now, slack)
if mode == 'undo' then
  write('DEL', KEYS[1])
else
  write('SET', KEYS[1], cjson.encode({str(now + keep), '1', record.used}), 'PX', str(keep + slack))
end
commit(KEYS[2])
return {1, lost}
