-- Replaces what an id holds in one slot by its final amount, once (T8).
--
-- KEYS: the id's record, the slot's index, the counters.
-- ARGV: mode (settle; undo: as if it had never been reserved), now (ms, 0 =
--       server time), id, keep (ms for which the settled id is remembered),
--       slack (ms of extra life for keys), then for each counter: period (ms,
--       0 = concurrency), final amount, index member.
-- Reply: state (0 the id holds nothing, 1 settled), how many cells that
--       should have been there were not (evicted, or lost in a fail-over).

local mode, now, id = ARGV[1], clock(ARGV[2]), ARGV[3]
local keep, slack = tonumber(ARGV[4]), tonumber(ARGV[5])

local record, flat = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end
if not record.deadline or record.settled or tonumber(record.deadline) <= now then return {0, 0} end

-- What an id gave back goes to the cell it was taken from; a cell that is
-- gone is not brought back.
local function refund(key, period, cell, n)
  local old = redis.call('HGET', key, cell)
  if not old then
    return (tonumber(cell) + CELLS + 1) * period > now * CELLS
  end
  local new = math.max(tonumber(old) - n, 0)
  if new == 0 and mode == 'undo' then
    redis.call('HDEL', key, cell)
  else
    redis.call('HSET', key, cell, str(new))
  end
  return false
end

local lost = 0
for i = 1, #KEYS - 2 do
  local key, at = KEYS[i + 2], 5 + (i - 1) * 3
  local period, final, member = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
  local cell, amount = string.match(record[key] or '', '^(%d+) (%d+)$')
  if cell and period == 0 then
    redis.call('ZREM', key, id)
  elseif cell then
    local more = final - tonumber(amount)
    if more > 0 then
      add(open(key, period, now), more, KEYS[2], member, now, slack)
    elseif more < 0 and refund(key, period, cell, -more) then
      lost = lost + 1
    end
  end
end
redis.call('DEL', KEYS[1])
if mode ~= 'undo' then
  redis.call('HSET', KEYS[1], 'deadline', str(now + keep), 'settled', '1', 'used', record.used)
  redis.call('PEXPIRE', KEYS[1], str(keep + slack))
end
return {1, lost}
