-- KEYS: counter   ARGV: reign, first, last
local state = state_of(KEYS[1])
-- The range was reserved for a reign; whoever comes late must not put it under another one's numbers.
if state.reign ~= ARGV[1] or state.server ~= this_server() or tonumber(ARGV[2]) < tonumber(state.next) then
  return 0
end
redis.call('HSET', KEYS[1], 'next', ARGV[2], 'ceiling', ARGV[3])
return 1
