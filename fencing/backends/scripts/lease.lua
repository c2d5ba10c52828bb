-- Comes before every script that reads a lease: "token holder reign granted_ms info", the last being JSON or empty.

-- The token, holder and reign of a lease key, or nothing.
local function parts_of(lease)
  if lease then
    return string.match(lease, '^(%d+) (%S+) (%S+) ')
  end
end

local function now_in_milliseconds()
  local time = redis.call('TIME')
  return time[1] .. string.sub(string.format('%06d', time[2]), 1, 3)
end
