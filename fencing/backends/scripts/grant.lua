-- A grant: the lease, and its line in the outbox. KEYS: lease, counter, events.
local function grant(token, reign, holder, ttl, info, resource)
  local line = note(KEYS[3], KEYS[2], 'kind', 'granted', 'token', token, 'resource', resource, 'holder', holder,
    'ttl', ttl, 'info', info)
  local granted = string.match(line or now_in_milliseconds(), '^%d+')
  redis.call('SET', KEYS[1], token .. ' ' .. holder .. ' ' .. reign .. ' ' .. granted .. ' ' .. info, 'PX', ttl)
end
