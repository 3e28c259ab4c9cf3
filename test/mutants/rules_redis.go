package main

var (
	redisRepeats = suite{"./sink/redis", "^(TestRepeats|TestSameEvent)$"}
	redisServer  = suite{"./sink/redis", "^(TestServerRefuses|TestPermissions)$"}
)

// redisMutants has mutants of the sink for Redis Streams.
var redisMutants = []mutant{
	wrong("redis-ack-without-the-answer", "An event is acknowledged although the script does not say that it is stored.",
		edits{{"sink/redis/transport.go", "		return answer.stored, t.failure(op, serverError(answer.why))\n", "		return len(items), nil\n"}}, redisServer),
	wrong("redis-refused-id-is-stored", "An event whose id the stream refuses counts as stored, without a look at the entry.",
		edits{{"sink/redis/store.lua", "local there, unread = has(id, from, to)", "local there, unread = true"}}, redisRepeats),
	wrong("redis-any-entry-is-the-event", "Any entry with the id counts as the event.",
		edits{{"sink/redis/store.lua", "return i1 == i2 and k1 == k2 and v1 == v2 and s1 == s2", "return true"}}, redisRepeats),
	wrong("redis-other-system", "An entry of another system of Postgres counts as the event.",
		edits{{"sink/redis/store.lua", " and s1 == s2", ""}}, redisRepeats),
	wrong("redis-goes-on-after-an-error", "The script goes on with the next event after one that is not stored.",
		edits{{"sink/redis/store.lua", "  if why then\n    return result(why)\n  end\n  stored, at = stored + 1, to + 1\n", "  if not why then\n    stored = stored + 1\n  end\n  at = to + 1\n"}}, redisRepeats),
	wrong("redis-ids-of-the-server", "The server chooses the ids of entries.",
		edits{{"sink/redis/store.lua", "  args[n] = id\n", "  args[n] = '*'\n"}}, suite{"./sink/redis", "^(TestTwoSenders|TestRepeats)$"}),
	wrong("redis-entry-of-a-replica", "A server that refuses all writes acknowledges what it has.",
		edits{{"sink/redis/store.lua", "if why and string.find(why, 'equal or smaller than the target stream', 1, true) then", "if why then"}}, redisServer),
	wrong("redis-unread-is-not-there", "An entry that may not be read counts as missing.",
		edits{{"sink/redis/store.lua", "    return false, found.err\n", "    return false\n"}}, redisServer),
	wrong("redis-ids-are-floats", "The next id is computed in 53 bits.",
		edits{{"sink/redis/store.lua", "return ms .. '-' .. increment(seq)", "return ms .. '-' .. string.format('%.0f', seq + 1)"}}, redisRepeats),
	wrong("redis-replicas-are-not-awaited", "An event is acknowledged although too few replicas have it.",
		edits{{"sink/redis/transport.go", "	case n >= int64(want):\n", "	case !is && n >= 0:\n"}}, suite{"./sink/redis", "^TestReplicas$"}),
	wrong("redis-repeats-write-nothing", "A repeat writes nothing, and Redis 7.2 then does not wait for the replicas.",
		edits{{"sink/redis/store.lua", "if replicas ~= '0' and", "if false and"}}, suite{"./sink/redis", "^TestReplicas$"}),
	wrong("redis-wait-hides-the-reason", "The error of WAIT hides why the script stores nothing.",
		edits{{"sink/redis/transport.go", `	case a.why != "":`, "	case false:"}}, redisServer),
	wrong("redis-keeps-the-old-primary", "A server that fails keeps its connections, although its name may lead to a new primary.",
		edits{{"sink/redis/transport.go", "		t.client.Close() // as below\n", ""}}, suite{"./sink/redis", "^TestReplicas$"}),
	wrong("redis-acl-of-a-script", "A permission that is missing in the script of Redis 7.2 is an outage.",
		edits{{"sink/redis/failure.go", `, "ACL failure in script"`, ""}}, suite{"./sink/redis", "^TestMeanings$"}),
	wrong("redis-error-shows-the-password", "An error repeats the password that the server repeats.",
		edits{{"sink/redis/failure.go", `text = strings.ReplaceAll(text, t.client.password, "xxxxx")`, ""}}, suite{"./sink/redis", "^TestMeanings$"}),
}
