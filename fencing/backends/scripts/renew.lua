-- KEYS: lease   ARGV: holder, ttl in ms
local token, holder = parts_of(redis.call('GET', KEYS[1]))
if holder ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
