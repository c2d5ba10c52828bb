-- Comes before every script that notes an event. The outbox is a stream with a cap, collected into the database.

-- Never fails: a full or broken outbox may cost history (and says how much), not a lease.
local function note(events, counter, cap, ...)
  local length = redis.pcall('XLEN', events)
  if type(length) == 'number' then
    local added
    if length < cap then
      added = redis.pcall('XADD', events, '*', ...)
    else
      added = redis.pcall('XADD', events, 'MAXLEN', cap, '*', ...)
    end
    if type(added) == 'string' then
      if length >= cap then
        redis.pcall('HINCRBY', counter, 'dropped', length + 1 - cap)
      end
      return
    end
  end
  redis.pcall('HINCRBY', counter, 'dropped', 1)
end
