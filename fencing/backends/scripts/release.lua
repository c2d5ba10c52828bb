-- KEYS: lease, counter, events, queue   ARGV: holder, token, resource, cap of the outbox
local token, holder = parts_of(redis.call('GET', KEYS[1]))
local ours = holder == ARGV[1]
if ours then
  -- First of all: without memory for the outbox the lease must end nevertheless.
  redis.call('DEL', KEYS[1])
end
note(KEYS[3], KEYS[2], 'kind', ours and 'released' or 'lost', 'token', ours and token or ARGV[2],
  'resource', ARGV[3], 'holder', ARGV[1])
if not ours then
  return 0
end
if redis.call('EXISTS', KEYS[4]) == 0 then
  return 1
end
