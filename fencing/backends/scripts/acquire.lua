-- KEYS: lease, counter, events   ARGV: holder, ttl in ms, offer of a reign, info, resource, cap of the outbox
local lease = redis.call('GET', KEYS[1])
if lease then
  local token, holder, reign = parts_of(lease)
  if holder == ARGV[1] then
    -- The client sent this request again, because the reply was lost.
    return {'granted', token, reign}
  end
  return {'held', lease, redis.call('PTTL', KEYS[1])}
end
local token, reign = issue(KEYS[2], ARGV[3])
if not token then
  return reign
end
local time = redis.call('TIME')
local granted = time[1] .. string.sub(string.format('%06d', tonumber(time[2])), 1, 3)
redis.call('SET', KEYS[1], table.concat({token, ARGV[1], reign, granted, ARGV[4]}, ' '), 'PX', ARGV[2])
note(KEYS[3], KEYS[2], tonumber(ARGV[6]), 'kind', 'granted', 'token', token, 'resource', ARGV[5], 'holder', ARGV[1],
  'ttl', ARGV[2], 'info', ARGV[4])
return {'granted', token, reign}
