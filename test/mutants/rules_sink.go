package main

var (
	httpContract = suite{"./sink/http", "^TestContract$/^structured$/^(Order|AckLost|Lost|Unavailable|Refused)$"}
	httpAnswers  = suite{"./sink/http", "^(TestAnswers|TestRedirect)$"}
	httpSecrets  = suite{"./sink/http", "^TestNoSecretInErrors$"}
)

// sinkMutants has mutants of the sink for HTTP.
var sinkMutants = []mutant{
	{
		name:  "http-ack-before-the-answer",
		rule:  "An event is acknowledged when its request is sent.",
		edits: []edit{{"sink/lane/lane.go", "func(stored int, why *Failure) { p.answered(l, stored, why) })\n", "func(int, *Failure) {})\n		p.answered(l, len(l.items), nil)\n"}},
		tests: []suite{httpContract},
	},
	{
		name:  "http-no-answer-is-an-ack",
		rule:  "A request whose connection was lost counts as acknowledged.",
		edits: []edit{{"sink/http/transport.go", "return 0, &lane.Failure{Op: op, Code: code, Err: err}", "return len(items), nil"}},
		tests: []suite{httpContract},
	},
	{
		name: "http-failed-request-goes-to-the-end",
		rule: "After a failure, a lane goes on with its next events.",
		edits: []edit{{
			"sink/lane/lane.go", "	p.later(l, p.cfg.pause(l.attempt))\n",
			"	l.queue = append(l.queue[len(l.items):], l.queue[:len(l.items)]...)\n	l.items = nil\n	p.later(l, p.cfg.pause(l.attempt))\n",
		}},
		tests: []suite{httpContract},
	},
	{
		name:  "http-two-requests-of-a-lane",
		rule:  "A record whose lane has a request in flight gets another lane.",
		edits: []edit{{"sink/lane/producer.go", "	if l == nil {\n", "	if l == nil || len(l.queue) > 0 {\n"}},
		tests: []suite{{"./sink/lane", "^TestOneCallInALane$"}},
	},
	wrong("lane-missing-of-another-key", "A topic is missing for no event if another one of it was acknowledged last.",
		edits{{"sink/lane/lane.go", "	l.attempt, l.failing, l.since, l.woken = 0, nil, time.Time{}, false\n", "	for _, l := range p.lanes {\n		l.attempt, l.failing, l.since = 0, nil, time.Time{}\n	}\n"}}, suite{"./sink/lane", "^TestWaiting$"}),
	wrong("lane-remains", "A lane without records remains, so that the memory grows with the number of topics.",
		edits{{"sink/lane/lane.go", "	} else {\n		delete(p.lanes, l.at)\n	}\n", "	}\n"}, {"sink/lane/producer.go", "	if l == nil {\n", "	if l == nil || len(l.queue) == 0 {\n"}},
		suite{"./sink/lane", "^TestMemoryAfterAcknowledgement$"}),
	{
		name:  "http-key-in-several-lanes",
		rule:  "The events of a key are in several lanes.",
		edits: []edit{{"sink/lane/producer.go", "h.Write(rec.PartitionBy)", "h.Write(rec.ID)"}},
		tests: []suite{httpContract},
	},
	wrong("http-rest-is-waited-for", "An answer counts when its body has ended.",
		edits{{"sink/http/transport.go", "	defer time.AfterFunc(restTime, cancel).Stop()\n", ""}}, suite{"./sink/http", "^TestRestOfTheAnswer$"}),
	{
		name:  "http-redirect-is-an-ack",
		rule:  "A redirect counts as an acknowledgement.",
		edits: []edit{{"sink/http/answer.go", "return status >= 200 && status < 300", "return status >= 200 && status < 400"}},
		tests: []suite{httpAnswers},
	},
	{
		name:  "http-refusal-is-an-ack",
		rule:  "A 4xx counts as an acknowledgement.",
		edits: []edit{{"sink/http/answer.go", "return status >= 200 && status < 300", "return status >= 200 && status < 300 || status > 407 && status < 500"}},
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
		edits: []edit{{"sink/lane/failure.go", "	if d <= 0 {\n		return\n	}\n", "	if d >= 0 {\n		return\n	}\n"}},
		tests: []suite{{"./sink/http", "^TestRetryAfter$"}},
	},
	{
		name:  "http-silence-of-one-lane",
		rule:  "A lane whose events the receiver has not refused sends although the receiver has asked for silence.",
		edits: []edit{{"sink/lane/lane.go", "	if silence > 0 {\n", "	if silence > 0 && l.failing != nil {\n"}},
		tests: []suite{{"./sink/http", "^TestRetryAfter$"}},
	},
	wrong("lane-waits-after-an-outage", "A lane waits for the end of its pause although the receiver has answered another one.",
		edits{{"sink/lane/lane.go", "	if outage {\n", "	if outage && stored < 0 {\n"}}, suite{"./sink/lane", "^TestEndOfOutage$"}),
	wrong("lane-woken-again-and-again", "A lane that fails alone is called whenever the receiver has answered another one after a failure.",
		edits{{"sink/lane/lane.go", " && !l.woken && ", " && "}}, suite{"./sink/lane", "^TestFailsAlone$"}),
	wrong("lane-woken-after-the-end", "An answer after the end of the session wakes lanes, one of which may have no next call.",
		edits{{"sink/lane/lane.go", "	if p.ended { // then a lane", "	if false { // then a lane"}}, suite{"./sink/lane", "^TestAnswersWhileItCloses$"}),
	wrong("lane-woken-though-answered", "A lane that the receiver has refused for now is called again as after an outage.",
		edits{{"sink/lane/failure.go", "f.Code == CodeConnection || f.Code == CodeTimeout", "f.Code == CodeConnection || f.Code == CodeTimeout || f.Code == CodeUnavailable"}}, suite{"./sink/lane", "^TestEndOfOutage$"}),
	{
		name:  "http-batch-id-is-its-first-event",
		rule:  "The id of a batch is that of its first event, so that a receiver drops a batch that has grown.",
		edits: []edit{{"sink/http/request.go", "sha256.Sum256(m.body)", "sha256.Sum256(items[0].Record.Value)"}},
		tests: []suite{{"./sink/http", "^TestBatchID$"}},
	},
	{
		name:  "http-answer-shows-secrets",
		rule:  "An error quotes what the receiver repeats of the daemon's password.",
		edits: []edit{{"sink/http/answer.go", `text += fmt.Sprintf(", %q", t.withoutSecrets(string(body)))`, `text += fmt.Sprintf(", %q", string(body))`}},
		tests: []suite{{"./sink/http", "^TestRefusal$"}},
	},
	wrong("http-quotes-a-part-of-a-secret", "An error quotes the beginning of a secret, because the answer is cut before it is searched.",
		edits{{"sink/http/secret.go", "wasCut := len(text) == maxQuoted", "wasCut := len(text) > maxQuoted"}}, httpSecrets),
	wrong("http-path-is-no-secret", "The path of the address is shown.",
		edits{{"sink/http/secret.go", "		add(minSegment, path)\n		add(minSegment, strings.Split(path, \"/\")...)\n", ""}, {"sink/http/secret.go", "for _, path := range", "for range"}}, httpSecrets),
	wrong("http-broken-answer-shows-secrets", "An error quotes what is no answer of HTTP.",
		edits{{"sink/http/transport.go", "errors.New(t.withoutSecrets(err.Error()))", "errors.New(err.Error())"}}, httpSecrets),
}
