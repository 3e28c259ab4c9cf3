-- Appends events to the stream KEYS[1], in their order. ARGV[1] is its maximum length, 0: none. ARGV[2] is how many
-- replicas are awaited. Then follow, for each event: the id of its entry, the number of its texts, and these texts:
-- names and values of its fields.
-- It stops at the first event that is not stored, and returns: how many are stored, how many of them the stream had
-- already, how many have another id than theirs, and why the next one is not stored.
local stream, most, replicas = KEYS[1], ARGV[1], ARGV[2]

-- append adds the texts from..to as an entry.
local function append(id, from, to)
  local args = {'XADD', stream}
  if most ~= '0' then
    args = {'XADD', stream, 'MAXLEN', '~', most}
  end
  local n = #args + 1
  args[n] = id
  for i = from, to do
    args[n + 1 + i - from] = ARGV[i]
  end
  return redis.pcall(unpack(args))
end

local function refused(answer) return type(answer) == 'table' and answer.err end

-- fields returns the fields of an entry. Of the position, only the system of Postgres counts: its timeline differs
-- when the event is sent again after a failover.
local function fields(texts, from, to)
  local f = {}
  for i = from, to, 2 do
    f[texts[i]] = texts[i + 1]
  end
  return f['id'], f['key'], f['value'], string.match(f['header.outboxcdc-position'] or '', '^%d+:(%d+):')
end

-- has reports whether the entry with the id is this event: it has the same id, key and value, from the same system.
local function has(id, from, to)
  local found = redis.pcall('XRANGE', stream, id, id)
  if refused(found) then
    return false, found.err
  end
  if #found == 0 then
    return false
  end
  local i1, k1, v1, s1 = fields(found[1][2], 1, #found[1][2])
  local i2, k2, v2, s2 = fields(ARGV, from, to)
  return i1 == i2 and k1 == k2 and v1 == v2 and s1 == s2
end

-- increment adds one to a decimal text, because numbers of Lua have only 53 bits.
local function increment(text)
  local head, digit, nines = string.match(text, '^(%d-)(%d?)(9*)$')
  return head .. ((tonumber(digit) or 0) + 1) .. string.rep('0', #nines)
end

-- last returns the last id that the stream has had: its two numbers.
local function last()
  local info = redis.pcall('XINFO', 'STREAM', stream)
  if refused(info) then
    return nil, nil, info.err
  end
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return string.match(info[i + 1], '^(%d+)%-(%d+)$')
    end
  end
  return nil, nil, 'ERR XINFO STREAM has no last-generated-id'
end

-- after returns the id after the last one that the stream has had.
local function after()
  local ms, seq, why = last()
  if why then
    return nil, why
  end
  if seq == '18446744073709551615' then
    return increment(ms) .. '-0'
  end
  return ms .. '-' .. increment(seq)
end

local at, stored, repeats, moved = 3, 0, 0, 0

-- result is the answer of the script. If replicas are awaited and nothing was written, it makes a write that
-- changes nothing: WAIT is about the writes of its connection. Without one, Redis 7.2 does not wait for what was
-- there already.
local function result(why)
  if replicas ~= '0' and stored > 0 and stored == repeats then
    local ms, seq, unread = last()
    local untouched = unread or refused(redis.pcall('XSETID', stream, ms .. '-' .. seq))
    if untouched then
      return {0, 0, 0, untouched}
    end
  end
  return {stored, repeats, moved, why}
end

while at <= #ARGV do
  local id, from = ARGV[at], at + 2
  local to = from + tonumber(ARGV[at + 1]) - 1
  local answer = append(id, from, to)
  local why = refused(answer)
  if why and string.find(why, 'equal or smaller than the target stream', 1, true) then
    -- Only what is read in the stream shows that the event is there. The stream may be past its position for another
    -- reason, and then the event is appended.
    local there, unread = has(id, from, to)
    why = unread
    if there then
      repeats = repeats + 1
    elseif not why then
      id, why = after()
      if id then
        why = refused(append(id, from, to))
        moved = moved + (why and 0 or 1)
      end
    end
  end
  if why then
    return result(why)
  end
  stored, at = stored + 1, to + 1
end
return result('')
