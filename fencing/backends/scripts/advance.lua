-- KEYS: lease, counter, events   ARGV: holder, cap of the outbox
local token, holder, reign = parts_of(redis.call('GET', KEYS[1]))
if holder ~= ARGV[1] then
  return 'lost'
end
local server = this_server()
local refusal = unusable(server)
if refusal then
  return refusal
end
local state = state_of(KEYS[2])
-- A lease that came back with a lagging replica or an old dump: its holder may be superseded long since.
if state.server ~= server or state.reign ~= reign then
  return 'lost'
end
local next, reply = count(KEYS[2], KEYS[3], ARGV[2], state)
if not next then
  return reply
end
return 'granted ' .. next .. ' ' .. reign
