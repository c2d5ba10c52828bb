-- KEYS: lease, counter, events   ARGV: token, resource
local token, holder = parts_of(redis.call('GET', KEYS[1]))
if token ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
note(KEYS[3], KEYS[2], 'kind', 'revoked', 'token', token, 'resource', ARGV[2], 'holder', holder)
return 1
