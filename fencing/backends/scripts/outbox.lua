-- The outbox: a stream of the grants and their ends, collected into the database.

-- Not at each event, which would cost a tenth of a grant; between two times nobody can add many.
local TRIM_EVERY = 256

-- Drop the oldest lines above the cap, and say so: nothing is lost silently when the collectors stay away.
local function trim(events, counter, cap)
  local dropped = redis.pcall('XTRIM', events, 'MAXLEN', cap)
  if type(dropped) == 'number' and dropped > 0 then
    redis.pcall('HINCRBY', counter, 'dropped', dropped)
  end
end

-- Append a line and return its id, which begins with the time in milliseconds; nil if that failed. A full or broken
-- outbox costs history (and counts how much), never a lease.
local function note(events, counter, ...)
  local id = redis.pcall('XADD', events, '*', ...)
  if type(id) == 'string' then
    return id
  end
  redis.pcall('HINCRBY', counter, 'dropped', 1)
end
