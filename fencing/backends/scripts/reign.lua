-- Comes before every script that issues a number.
--
-- The counter hash holds reign, replid, next (the lowest number not issued), ceiling (the last that may be issued)
-- and dropped (lines that the outbox's cap has dropped). master_replid is new at every start of a primary and at
-- every promotion: a hash that another server wrote is no base to count on.

-- This server's master_replid, or what stands in its place.
local function this_server()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%S*)') or ''
end

-- The reply that refuses to count, or nil if `server` identifies this server.
local function unusable(server)
  if #server ~= 40 or string.find(server, '%X') then
    return 'unusable ' .. server
  end
end

local function state_of(counter)
  local fields = redis.call('HMGET', counter, 'reign', 'replid', 'next', 'ceiling')
  return {reign = fields[1], server = fields[2], next = fields[3] or '1', ceiling = fields[4] or '0'}
end

-- A new reign has no range. Its name holds the server's time as well: an offer that is sent twice makes two reigns.
-- `next` is kept, as a lower bound for what will be reserved: the database may have been set back too.
local function begin_reign(counter, server, offer, next)
  local time = redis.call('TIME')
  local reign = offer .. ':' .. time[1] .. '.' .. time[2]
  redis.call('HSET', counter, 'reign', reign, 'replid', server, 'next', next, 'ceiling', '0')
  return {reign = reign, server = server, next = next, ceiling = '0'}
end

-- The next number as a string, because a Lua number is a double; or nil and the reply that asks for a range.
local function count(counter, events, cap, state)
  local next = tonumber(state.next)
  if next > tonumber(state.ceiling) then
    return nil, 'needs ' .. state.reign .. ' ' .. state.server .. ' ' .. state.next
  end
  redis.call('HINCRBY', counter, 'next', 1)
  if next % TRIM_EVERY == 0 then
    trim(events, counter, cap)
  end
  return state.next
end

-- The next number and its reign, in a new reign where this server did not write the hash; or nil and a reply. Without
-- an offer no reign begins.
local function issue(counter, events, cap, offer)
  local server = this_server()
  local refusal = unusable(server)
  if refusal then
    return nil, refusal
  end
  local state = state_of(counter)
  if state.server ~= server or not state.reign then
    if not offer then
      return nil, 'no reign'
    end
    state = begin_reign(counter, server, offer, state.next)
  end
  local token, reply = count(counter, events, cap, state)
  return token, reply or state.reign
end
