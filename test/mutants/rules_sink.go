package main

var (
	httpContract = suite{"./sink/http", "^TestContract$/^structured$/^(Order|AckLost|Lost|Unavailable|Refused)$"}
	httpAnswers  = suite{"./sink/http", "^(TestAnswers|TestRedirect)$"}
)

// sinkMutants has mutants of the sink for HTTP.
var sinkMutants = []mutant{
	{
		name:  "http-ack-before-the-answer",
		rule:  "An event is acknowledged when its request is sent.",
		edits: []edit{{"sink/http/lane.go", "		what, wait, err := p.try(m)\n", "		what, wait, err := acked, time.Duration(0), (*failure)(nil)\n		go p.try(m)\n"}},
		tests: []suite{httpContract},
	},
	{
		name:  "http-no-answer-is-an-ack",
		rule:  "A request whose connection was lost counts as acknowledged.",
		edits: []edit{{"sink/http/lane.go", "return again, 0, &failure{op: op, reason: reason, err: bad}", "return acked, 0, nil"}},
		tests: []suite{httpContract},
	},
	{
		name: "http-failed-request-goes-to-the-end",
		rule: "After a failure, a lane goes on with its next events.",
		edits: []edit{{
			"sink/http/lane.go", "		if !p.sleep(p.receiver.cfg.pause(attempt)) {\n			return false\n		}\n",
			"		p.mu.Lock()\n		l.queue = append(l.queue[len(m.items):], m.items...)\n		p.mu.Unlock()\n		return p.sleep(p.receiver.cfg.pause(attempt))\n",
		}},
		tests: []suite{httpContract},
	},
	{
		name: "http-two-requests-of-a-lane",
		rule: "The next request of a lane is sent while one is in flight.",
		edits: []edit{
			{"sink/http/lane.go", "		if m == nil || !p.deliver(l, m) {\n			return\n		}\n", "		if m == nil {\n			return\n		}\n		p.senders.Go(func() { p.deliver(l, m) })\n"},
			{"sink/http/lane.go", "	return slices.Clone(l.queue[:n])\n", "	items := slices.Clone(l.queue[:n])\n	l.queue = l.queue[n:]\n	return items\n"},
			{"sink/http/lane.go", "	clear(l.queue[:len(numbers)])\n	l.queue = l.queue[len(numbers):]\n", ""},
		},
		tests: []suite{{"./sink/http", "^TestLanes$"}},
	},
	{
		name:  "http-key-in-several-lanes",
		rule:  "The events of a key are in several lanes.",
		edits: []edit{{"sink/http/producer.go", "h.Write(rec.PartitionBy)", "h.Write(rec.ID)"}},
		tests: []suite{httpContract},
	},
	{
		name:  "http-redirect-is-an-ack",
		rule:  "A redirect counts as an acknowledgement.",
		edits: []edit{{"sink/http/answer.go", "status >= 200 && status < 300", "status >= 200 && status < 400"}},
		tests: []suite{httpAnswers},
	},
	{
		name:  "http-refusal-is-an-ack",
		rule:  "A 4xx counts as an acknowledgement.",
		edits: []edit{{"sink/http/answer.go", "	case status >= 400 && status < 500:\n		return refused\n", "	case status >= 400 && status < 500:\n		return acked\n"}},
		tests: []suite{httpContract},
	},
	{
		name:  "http-outage-is-poison",
		rule:  "An event is poison because the receiver asks to come again.",
		edits: []edit{{"sink/http/answer.go", "status == http.StatusTooEarly, status == http.StatusTooManyRequests", "status == http.StatusTooEarly"}},
		tests: []suite{httpAnswers},
	},
	{
		name:  "http-retry-after-is-ignored",
		rule:  "Retry-After is not obeyed.",
		edits: []edit{{"sink/http/receiver.go", "	if d <= 0 {\n		return\n	}\n", "	if d >= 0 {\n		return\n	}\n"}},
		tests: []suite{{"./sink/http", "^TestRetryAfter$"}},
	},
	{
		name:  "http-silence-of-one-lane",
		rule:  "A lane whose events the receiver has not refused sends although the receiver has asked for silence.",
		edits: []edit{{"sink/http/lane.go", "p.keepSilence() && p.begin()", "p.begin()"}},
		tests: []suite{{"./sink/http", "^TestRetryAfter$"}},
	},
	{
		name:  "http-batch-id-is-its-first-event",
		rule:  "The id of a batch is that of its first event, so that a receiver drops a batch that has grown.",
		edits: []edit{{"sink/http/request.go", "sha256.Sum256(m.body)", "sha256.Sum256(items[0].body)"}},
		tests: []suite{{"./sink/http", "^TestBatchID$"}},
	},
	{
		name:  "http-answer-shows-secrets",
		rule:  "An error quotes what the receiver repeats of the daemon's password.",
		edits: []edit{{"sink/http/answer.go", `text += fmt.Sprintf(", %q", p.withoutSecrets(string(body)))`, `text += fmt.Sprintf(", %q", string(body))`}},
		tests: []suite{{"./sink/http", "^TestRefusal$"}},
	},
}
