-- Tries commands on a key that is a string: a right that the user lacks is
-- refused before the type of the key is looked at, so nothing is changed.
--
-- KEYS: the key. ARGV: its life (ms), the commands: a JSON list of lists, "@"
--       is the key.
-- Reply: the commands that the user may not run, and "keys" where it may not
--       use the key; all else that is wrong with the server is the error.

-- What an error denies; nil = nothing.
local function denied(text, command)
  if string.find(text, "can't run this command", 1, true) then return command end
  if string.find(text, "can't access", 1, true) then return 'keys' end
  if string.find(text, 'NOPERM', 1, true) then
    return string.find(text, 'keys', 1, true) and 'keys' or command
  end
end

local missing, keys = {}, false
local function try(command)
  local answer = redis.pcall(unpack(command))
  if type(answer) ~= 'table' or not answer.err then return end
  local what = denied(answer.err, string.lower(command[1]))
  if what == 'keys' then
    keys = true
  elseif what then
    missing[#missing + 1] = what
  elseif not string.find(answer.err, 'WRONGTYPE', 1, true) then
    return error(answer.err, 0)
  end
end

try({'SET', KEYS[1], '', 'PX', ARGV[1]})
if keys then return {'keys'} end
if #missing > 0 then return missing end -- without the key others would make one that stays
for _, command in ipairs(cjson.decode(ARGV[2])) do
  for i = 2, #command do
    if command[i] == '@' then command[i] = KEYS[1] end
  end
  try(command)
end
try({'DEL', KEYS[1]})
if keys then missing[#missing + 1] = 'keys' end
return missing
