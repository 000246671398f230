-- Tries commands on a key that is a string: a right that the user lacks is
-- refused before the type of the key is looked at, so nothing is changed.
--
-- KEYS: the key. ARGV: its life (ms), the commands: a JSON list of lists, "@"
--       is the key.
-- Reply: the commands that the user may not run; all else that is wrong with
--       the server is the error.

local function denied(text)
  return string.find(text, 'NOPERM', 1, true) or string.find(text, "can't run this command", 1, true)
    or string.find(text, "can't access", 1, true)
end

local missing = {}
local function try(command)
  local answer = redis.pcall(unpack(command))
  if type(answer) ~= 'table' or not answer.err then return end
  if denied(answer.err) then
    missing[#missing + 1] = string.lower(command[1])
  elseif not string.find(answer.err, 'WRONGTYPE', 1, true) then
    return error(answer.err, 0)
  end
end

try({'SET', KEYS[1], '', 'PX', ARGV[1]})
if #missing > 0 then return missing end -- without the key others would make one that stays
for _, command in ipairs(cjson.decode(ARGV[2])) do
  for i = 2, #command do
    if command[i] == '@' then command[i] = KEYS[1] end
  end
  try(command)
end
try({'DEL', KEYS[1]})
return missing
