-- Comes before every script that reads a lease: "token holder reign granted_ms info", the last being JSON or empty.

-- The token, holder and reign of a lease key, or nothing.
local function parts_of(lease)
  if lease then
    return string.match(lease, '^(%d+) (%S+) (%S+) ')
  end
end
