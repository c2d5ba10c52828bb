-- KEYS: counter, events   ARGV: offer of a reign, cap of the outbox
local token, reign = issue(KEYS[1], KEYS[2], ARGV[2], ARGV[1])
if not token then
  return reign
end
return 'granted ' .. token .. ' ' .. reign
