-- Takes all counters of one slot for an id, or none (T8).
--
-- KEYS: the id's record, the slot's index, the counters.
-- ARGV: mode (take; check: judge only; force: take without judging),
--       now (ms, 0 = server time), age (ms since the reservation was made),
--       id, hold (ms until an unsettled reservation ends), slack (ms of extra
--       life for keys), then for each counter: period (ms, 0 = concurrency),
--       maximum, amount, index member.
-- Reply: state (0 refused, 1 taken or would be, 2 the id held it already),
--       now, the counters' use before this, separated by spaces; if refused,
--       then for each refusing window its number and its cells.

local mode, now, age, id = ARGV[1], clock(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local hold, slack = tonumber(ARGV[5]), tonumber(ARGV[6])

local held = redis.call('HMGET', KEYS[1], 'deadline', 'used')
if held[1] and tonumber(held[1]) > now then return {2, str(now), held[2]} end

local refused, used, windows, reply = false, {}, {}, {}
for i = 1, #KEYS - 2 do
  local key, at = KEYS[i + 2], 6 + (i - 1) * 4
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

local deadline = now - age + hold
local record = {'deadline', str(deadline), 'used', before}
for i = 1, #KEYS - 2 do
  local key, at = KEYS[i + 2], 6 + (i - 1) * 4
  local period, amount, member = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 3]), ARGV[at + 4]
  local cell = 0
  if period == 0 then
    if amount > 0 then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', str(now))
      redis.call('ZADD', key, str(deadline), id)
      redis.call('PEXPIRE', key, str(hold + slack))
      note(KEYS[2], member, now, hold, slack)
    end
  elseif amount > 0 and age < span(period) then
    cell = add(windows[i], amount, KEYS[2], member, now, slack)
  end
  record[#record + 1] = key
  record[#record + 1] = str(cell) .. ' ' .. str(amount)
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(record))
redis.call('PEXPIRE', KEYS[1], str(hold + slack))
return {1, str(now), before}
