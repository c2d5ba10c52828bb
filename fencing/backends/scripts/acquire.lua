-- KEYS: lease, counter, events   ARGV: holder, ttl in ms, offer of a reign, info, resource, cap of the outbox
local lease = redis.call('GET', KEYS[1])
if lease then
  local token, holder, reign = parts_of(lease)
  if holder == ARGV[1] then
    -- The client sent this request again, because the reply was lost.
    return 'granted ' .. token .. ' ' .. reign
  end
  return 'held ' .. redis.call('PTTL', KEYS[1]) .. ' ' .. lease
end
local token, reign = issue(KEYS[2], KEYS[3], ARGV[6], ARGV[3])
if not token then
  return reign
end
local line = note(KEYS[3], KEYS[2], 'kind', 'granted', 'token', token, 'resource', ARGV[5], 'holder', ARGV[1],
  'ttl', ARGV[2], 'info', ARGV[4])
local granted = string.match(line or now_in_milliseconds(), '^%d+')
redis.call('SET', KEYS[1], token .. ' ' .. ARGV[1] .. ' ' .. reign .. ' ' .. granted .. ' ' .. ARGV[4], 'PX', ARGV[2])
return 'granted ' .. token .. ' ' .. reign
