-- KEYS: lease, counter, events, queue   ARGV: holder, resource, cap of the outbox
local entry = entry_of(ARGV[1])
if entry then
  redis.call('LREM', KEYS[4], 1, entry)
end
local token, holder = parts_of(redis.call('GET', KEYS[1]))
if holder ~= ARGV[1] then
  return 0
end
-- It was granted in the same moment.
redis.call('DEL', KEYS[1])
note(KEYS[3], KEYS[2], 'kind', 'released', 'token', token, 'resource', ARGV[2], 'holder', holder)
hand_over(ARGV[2], ARGV[3])
return 1
