-- KEYS: lease, counter, events, queue
-- ARGV: holder, ttl in ms, info, resource, cap of the outbox, listener (empty: do not queue). The holder's id is its
-- offer of a reign, too.
--
-- The common cases come before the functions of the queue, whose making would cost each grant.
if redis.call('EXISTS', KEYS[1], KEYS[4]) == 0 then
  local token, reign = issue(KEYS[2], KEYS[3], ARGV[5], ARGV[1])
  if not token then
    return reign
  end
  grant(token, reign, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
  return 'granted ' .. token .. ' ' .. reign
end
local lease = redis.call('GET', KEYS[1])
local token, holder, reign = parts_of(lease)
if holder == ARGV[1] then
  -- Handed over while it waited; or the client sent this request again, because the reply was lost.
  return 'granted ' .. token .. ' ' .. reign .. ' ' .. redis.call('PTTL', KEYS[1])
end
