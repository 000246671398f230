-- Takes all counters of one slot for an id, or none (T8).
--
-- KEYS: the id's record, the slot's log, the slot's index, the counters.
-- ARGV: mode (take; check: judge only; force: take without judging), now (ms,
--       0 = server time), age (ms since the reservation was made), id, hold
--       (ms until an unsettled reservation ends), life (ms for which a unit of
--       concurrency counts until its replica renews it; 0 = hold), keep (ms
--       for which an id is remembered at least), slack (ms of extra life for
--       keys), then for each counter: period (ms, 0 = concurrency), maximum,
--       amount, index member.
-- Reply: state (0 refused, 1 taken or would be, 2 the id held it already),
--       now, the counters' use before this, separated by spaces; if refused,
--       then for each refusing window its number and its cells.

local mode, now, age, id = ARGV[1], clock(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local hold, life, keep, slack = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local deadline = now - age + hold

-- A unit counts for as long as its replica says so, and ends with its
-- reservation.
local function unit(key, amount, ends)
  local over = ends
  if life > 0 then over = math.min(over, now + life) end
  if amount == 0 or over <= now then return end
  write('ZADD', key, str(over), id)
  write('ZREMRANGEBYSCORE', key, '-inf', str(now))
  write('PEXPIRE', key, str(hold + slack))
end

redo(KEYS[2])
local held = read(KEYS[1])
if held and mode == 'force' then
  if not held.settled then -- its units may be over: the replica was away
    for i = 1, #KEYS - 3 do
      local at = 8 + (i - 1) * 4
      if tonumber(ARGV[at + 1]) == 0 then unit(KEYS[i + 3], tonumber(ARGV[at + 3]), held.deadline) end
    end
    commit(KEYS[2])
  end
  return {2, str(now), held.used}
end
if held and held.deadline > now then return {2, str(now), held.used} end

local refused, used, windows, reply = false, {}, {}, {}
for i = 1, #KEYS - 3 do
  local key, at = KEYS[i + 3], 8 + (i - 1) * 4
  local period, max, amount = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local n
  if period == 0 then
    n = redis.call('ZCOUNT', key, '(' .. str(now), '+inf')
  else
    windows[i] = open(key, period, now - age)
    n = windows[i].used
  end
  used[i] = str(n)
  if amount > 0 and n > max - amount then
    refused = true
    if period > 0 then reply[#reply + 1] = {i, windows[i].flat} end
  end
end
local before = table.concat(used, ' ')
if refused and mode ~= 'force' then return {0, str(now), before, unpack(reply)} end
if mode == 'check' then return {1, str(now), before} end

local record = {str(deadline), '0', before}
for i = 1, #KEYS - 3 do
  local key, at = KEYS[i + 3], 8 + (i - 1) * 4
  local period, amount, member = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 3]), ARGV[at + 4]
  local cell = 0
  if period == 0 then
    unit(key, amount, deadline)
    if amount > 0 then note(member, now, hold) end
  elseif amount > 0 and age < span(period) then
    cell = add(windows[i], amount, member, now, slack)
  end
  record[#record + 1] = key
  record[#record + 1] = str(cell) .. ' ' .. str(amount)
end
index(KEYS[3], now, slack)
write('SET', KEYS[1], cjson.encode(record), 'PX', str(math.max(hold - age, keep) + slack))
commit(KEYS[2])
return {1, str(now), before}
