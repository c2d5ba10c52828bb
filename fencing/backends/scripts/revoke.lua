-- KEYS: lease, counter, events, queue   ARGV: token, resource, cap of the outbox
local token, holder = parts_of(redis.call('GET', KEYS[1]))
if token ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
note(KEYS[3], KEYS[2], 'kind', 'revoked', 'token', token, 'resource', ARGV[2], 'holder', holder)
hand_over(ARGV[2], ARGV[3])
return 1
