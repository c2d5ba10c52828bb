-- The rest of acquire: somebody holds the lease, or waits for it.
local function held()
  local unchanged = ARGV[6] == '' and 0 or join(ARGV[1], ARGV[6], ARGV[2], ARGV[3])
  return 'held ' .. redis.call('PTTL', KEYS[1]) .. ' ' .. unchanged .. ' ' .. redis.call('GET', KEYS[1])
end

if lease then
  return held()
end
local token, reign = issue(KEYS[2], KEYS[3], ARGV[5], ARGV[1])
if not token then
  return reign
end
local waiter = first_waiter(ARGV[1])
if waiter and waiter.holder ~= ARGV[1] then
  -- The last holder died, or its lease was removed by hand: nobody overtakes those who wait.
  serve(waiter, token, reign, ARGV[4])
  return held()
end
if waiter then
  redis.call('LPOP', KEYS[4])
end
grant(token, reign, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return 'granted ' .. token .. ' ' .. reign
