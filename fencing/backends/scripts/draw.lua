-- KEYS: counter   ARGV: offer of a reign
local token, reign = issue(KEYS[1], ARGV[1])
if not token then
  return reign
end
return {'granted', token, reign}
