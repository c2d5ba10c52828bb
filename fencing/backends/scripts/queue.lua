-- The queue of those who wait for a lease: a list, first come first, of "holder listener ttl info", the last being
-- JSON or empty. Every script with this part has KEYS: lease, counter, events, queue.
--
-- A waiter listens on a channel that stands beside the counter; a channel without a subscriber is a dead waiter's.

-- Waiters ask again far more often. Where all of them died, the queue goes as well.
local QUEUE_TTL = 60000

local function waiter_of(entry)
  return string.match(entry, '^(%S+) (%S+) (%d+) (.*)$')
end

local function channel_of(listener)
  return string.sub(KEYS[2], 1, -#'counter' - 1) .. 'waiter:' .. listener
end

-- Not the number that PUBLISH returns, which counts those who listen to everything, too.
local function is_listening(listener)
  local found = redis.pcall('PUBSUB', 'NUMSUB', channel_of(listener))
  return found.err or tonumber(found[2]) > 0
end

-- The first waiter that lives; the dead ones before it are dropped. Whoever is asking is alive.
local function first_waiter(asking)
  local entry = redis.call('LINDEX', KEYS[4], 0)
  while entry do
    local holder, listener, ttl, info = waiter_of(entry)
    if holder and (holder == asking or is_listening(listener)) then
      return {holder = holder, listener = listener, ttl = ttl, info = info}
    end
    redis.call('LPOP', KEYS[4])
    entry = redis.call('LINDEX', KEYS[4], 0)
  end
end

-- The entry of a holder, if it has one, and the shortest ttl of those before it.
local function entry_of(holder)
  local shortest = QUEUE_TTL
  for _, entry in ipairs(redis.call('LRANGE', KEYS[4], 0, -1)) do
    local whose, _, ttl = waiter_of(entry)
    if whose == holder then
      return entry, shortest
    end
    shortest = math.min(shortest, tonumber(ttl) or 0)
  end
  return nil, shortest
end

-- Take the last place, or keep the one that the holder has. Returns the shortest ttl of those before it: a lease that
-- is handed to one of them does not end earlier than that from now.
local function join(holder, listener, ttl, info)
  local entry, shortest = entry_of(holder)
  if not entry then
    redis.call('RPUSH', KEYS[4], holder .. ' ' .. listener .. ' ' .. ttl .. ' ' .. info)
  end
  redis.call('PEXPIRE', KEYS[4], QUEUE_TTL)
  return shortest
end

-- Failing to tell costs time only: a waiter asks again by itself, and finds its grant.
local function tell(waiter, ...)
  redis.pcall('PUBLISH', channel_of(waiter.listener), table.concat({waiter.holder, ...}, ' '))
end

-- Give the free lease to the waiter at the head.
local function serve(waiter, token, reign, resource)
  redis.call('LPOP', KEYS[4])
  grant(token, reign, waiter.holder, waiter.ttl, waiter.info, resource)
  tell(waiter, token, reign)
end

-- Give the lease, which has just become free, to the first waiter. Without a number for it, wake it: it asks for the
-- lease itself, and gets the store a range.
local function hand_over(resource, cap)
  local waiter = first_waiter()
  if not waiter then
    return
  end
  local token, reign = issue(KEYS[2], KEYS[3], cap)
  if token then
    serve(waiter, token, reign, resource)
  else
    tell(waiter)
  end
end
