-- Stands in front of every script (see scripts.py). No keys of its own.
--
-- What the scripts keep true between them:
--   * a delivery is a pending entry of the consumer group; its owner is the consumer named there;
--   * the index hash of a request holds
--       hash      SHA-256 over content type and body; absent where only a cancel mark stands
--       position  the delivery that runs the request ("stream/entry" of the first publish)
--       place     where that delivery stands now: "stream/entry", or "retry"
--       epoch     fencing number, only ever rises
--       state     "open", or "ended" once a terminal record stands in the log
--       cancelled unix ms of the cancel mark
--   * every script is one atomic step, also in the append-only file.

local LOST, OVERTAKEN = 0, -1
local PARK_AGAIN_MS = 10000  -- for what is due and cannot be put back

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A time in ms as commands take it. A script that breaks off is not undone, so whoever is given one looks at
-- it before the first write; numbers that a command would refuse (10^15 ms are 30,000 years) end it here.
local function duration(text)
  local ms = tonumber(text)
  if not ms or not (ms >= 0 and ms <= 1e15) then error('ERR no time in ms: ' .. tostring(text)) end
  return string.format('%.0f', ms)
end

-- Writes what a consumer says of itself, with the time of this sign of life; '' says nothing.
local function register(registry, consumer, says)
  if says ~= '' then redis.call('HSET', registry, consumer, string.format('%.0f %s', now_ms(), says)) end
end

local function owns(stream, group, consumer, id)
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1)
  return not pending.err and pending[1] ~= nil and pending[1][2] == consumer
end

-- Why a writer may not write: LOST (somebody else has the delivery, or nobody), OVERTAKEN (its epoch is
-- not the latest), nil: it may; and the state that the index holds. Epoch '0' belongs to outcomes that opened
-- nothing.
local function refusal(stream, index, group, consumer, id, epoch)
  if not owns(stream, group, consumer, id) then return LOST end
  local known = redis.call('HMGET', index, 'epoch', 'state')
  if epoch ~= '0' and known[1] ~= epoch then return OVERTAKEN end
  return nil, known[2]
end

-- Whether the delivery that runs a request still exists: queued in any pool, pending, or parked for a retry.
local function stands(place, position, parked)
  if not place then return false end
  if place == 'retry' then return redis.call('HEXISTS', parked, position) == 1 end
  local stream, id = string.match(place, '^(.*)/([^/]+)$')
  return #redis.call('XRANGE', stream, id, id) > 0
end

-- The fields of an entry as its publisher sent them: without our own mark of a redelivery.
local function sent_fields(entry)
  local fields = {}
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] ~= 'headrace-position' then
      fields[#fields + 1] = entry[2][i]
      fields[#fields + 1] = entry[2][i + 1]
    end
  end
  return fields
end

-- Acknowledging alone would leave the entry in the stream for ever.
local function acknowledge(stream, group, id)
  redis.call('XACK', stream, group, id)
  redis.call('XDEL', stream, id)
end

-- Puts a new request on its queue. Without an id its position is the id, and `index` what stands before it.
-- Returns the entry id.
local function enqueue(stream, index, hash, has_id, pools, pool, fields)
  local id = redis.call('XADD', stream, '*', unpack(fields))
  local position = stream .. '/' .. id
  if not has_id then index = index .. position end
  redis.call('HSET', index, 'hash', hash, 'state', 'open', 'position', position, 'place', position)
  redis.call('HDEL', index, 'cancelled')  -- a mark counts only for what was published before it
  redis.call('PERSIST', index)
  if pool ~= '' then redis.call('SADD', pools, pool) end
  return id
end

-- Puts a delivery on a queue again, under its position. Returns the error of a stream that takes no entry (a
-- client may have used up its ids), nil: it stands there.
local function requeue(stream, index, position, fields)
  local added = redis.pcall('XADD', stream, '*', 'headrace-position', position, unpack(fields))
  if added.err then return added end
  if redis.call('HGET', index, 'position') == position then
    redis.call('HSET', index, 'place', stream .. '/' .. added)
  end
end

-- Feed entries are numbered without holes, so that a reader notices what was trimmed before it came by.
local function publish_on_feed(feed, length, entry)
  local last = redis.call('XREVRANGE', feed, '+', '-', 'COUNT', 1)[1]
  local number = last and tonumber(string.match(last[1], '^%d+')) + 1 or 1
  redis.call('XADD', feed, 'MAXLEN', '~', length, string.format('%.0f-0', number), unpack(entry))
end

-- Adds events to a log, and tells the readers that tail its feed.
local function write(log, feed, feed_length, events)
  local entry = {'log', log}
  for _, event in ipairs(events) do
    entry[#entry + 1] = redis.call('XADD', log, '*', 'event', event)
    entry[#entry + 1] = event
    if #entry > 1000 then  -- unpack is bounded
      publish_on_feed(feed, feed_length, entry)
      entry = {'log', log}
    end
  end
  if #entry > 2 then publish_on_feed(feed, feed_length, entry) end
end

-- Emits the fields ARGV[first] to ARGV[last] as a result line; for `kind` and `keep_ms` see `read_conclusion`.
-- A reply topic is a key of the publisher's choice: where it takes no entry (it is no stream, or its ids are
-- used up), the line goes to the results of all, so that it is not lost.
local function emit(topic, results, kind, keep_ms, first, last)
  if kind == 'results' then
    local oldest = string.format('%.0f', math.max(0, now_ms() - tonumber(keep_ms)))
    redis.call('XADD', results, 'MINID', '~', oldest, '*', unpack(ARGV, first, last))
  elseif redis.pcall('XADD', topic, '*', unpack(ARGV, first, last)).err then
    redis.call('XADD', results, '*', unpack(ARGV, first, last))
  else
    redis.call('PEXPIRE', topic, keep_ms)
  end
end

-- Reads what `conclude` needs. To be called before the first write: what may fail comes first, since a script
-- that breaks off is not undone. `first` is the place in ARGV of this dictionary:
--   first      terminal event, '' for none
--   first + 1  ms that log and index live on
--   first + 2  length that a feed is trimmed to
--   first + 3  '' for no line, 'reply' (the topic expires) or 'results' (old lines are trimmed)
--   first + 4  ms that lines, or a reply topic without new ones, are kept
--   first + 5  number of fields and values of the line, which follow; behind them events that come before
--              the terminal one
local function read_conclusion(first)
  local last_field = first + 5 + tonumber(ARGV[first + 5])
  local events = {}
  for i = last_field + 1, #ARGV do events[#events + 1] = ARGV[i] end
  events[#events + 1] = ARGV[first]
  return {
    ends = ARGV[first] ~= '', events = events,
    keep_log = duration(ARGV[first + 1]), feed_length = ARGV[first + 2],
    kind = ARGV[first + 3], keep_lines = duration(ARGV[first + 4]),
    first_field = first + 6, last_field = last_field,
  }
end

-- Ends a log and emits the result line, once, to `topic` or to `results`. `state`: that of the index.
local function conclude(end_of, state, index, log, feed, topic, results)
  if not end_of.ends or state == 'ended' then return end
  if end_of.kind ~= '' then
    emit(topic, results, end_of.kind, end_of.keep_lines, end_of.first_field, end_of.last_field)
  end
  write(log, feed, end_of.feed_length, end_of.events)
  redis.call('HSET', index, 'state', 'ended')
  redis.call('PEXPIRE', log, end_of.keep_log)
  redis.call('PEXPIRE', index, end_of.keep_log)
end

-- Puts a parked delivery back into its stream. One whose stream takes no entry stays parked: all consumers
-- come by here, and what they get from other lanes is none of its business.
local function forward(retry, messages, position)
  local packed = redis.call('HGET', messages, position)
  local item = packed and cmsgpack.unpack(packed)
  if item and requeue(item.stream, item.index, position, item.fields) then
    redis.call('ZADD', retry, now_ms() + PARK_AGAIN_MS, position)
    return
  end
  redis.call('ZREM', retry, position)
  redis.call('HDEL', messages, position)
end

-- Puts parked deliveries whose time has come back into their streams, item by item. At most `limit`, so
-- that no call blocks the server for long. Returns the due time of the next one, or nil.
local function forward_due(retry, messages, limit)
  local due = redis.call('ZRANGEBYSCORE', retry, '-inf', now_ms(), 'LIMIT', 0, limit)
  for _, position in ipairs(due) do forward(retry, messages, position) end
  local next_due = redis.call('ZRANGE', retry, 0, 0, 'WITHSCORES')
  return next_due[2] and tonumber(next_due[2])
end
