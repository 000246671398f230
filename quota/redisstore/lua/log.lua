-- How scripts write. A script may be cut between any two of its commands: by a
-- right that its user lacks, by a slot that moves, by a server that refuses
-- writes; what it has written by then stays. So each script first works out
-- all it is going to write, as commands that may be run twice (values, never
-- increments), stores the list under the slot's log key, runs it and removes
-- it. A script that finds a list runs it to its end before it looks at
-- anything else: a slot is whole whenever a script decides, and a replay of
-- the one that was cut finds its id charged.
--
-- In a slot that moves between nodes of a cluster a key that is removed cannot
-- be made again, so commands that add to a key stand before those that remove.

local LOG_LIFE = 86400000 -- ms: longer than an outage after which scripts are replayed

local writes = {}
local function write(...) writes[#writes + 1] = {...} end

local function redo(log)
  local text = redis.call('GET', log)
  if not text then return end
  for _, w in ipairs(cjson.decode(text)) do
    local done = redis.pcall(unpack(w))
    -- A foreign value that took a key's place is not ours to mend.
    if type(done) == 'table' and done.err and not string.find(done.err, 'WRONGTYPE', 1, true) then
      return error(done.err, 0)
    end
  end
  redis.call('DEL', log)
end

local function commit(log)
  if #writes > 1 then redis.call('SET', log, cjson.encode(writes), 'PX', string.format('%.0f', LOG_LIFE)) end
  for i = 1, #writes do redis.call(unpack(writes[i])) end
  if #writes > 1 then redis.call('DEL', log) end
end
