-- KEYS: counter   ARGV: offer of a reign
local server = this_server()
local refusal = unusable(server)
if refusal then
  return refusal
end
local state = begin_reign(KEYS[1], server, ARGV[1], state_of(KEYS[1]).next)
return 'needs ' .. state.reign .. ' ' .. state.server .. ' ' .. state.next
