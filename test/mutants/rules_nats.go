package main

var (
	natsAnswers = suite{"./sink/nats", "^(TestAnswers|TestOtherAnswers)$"}
	natsMessage = suite{"./sink/nats", "^TestMessage$"}
	natsLimits  = suite{"./sink/nats", "^TestAccountLimits$"}
	natsLogin   = suite{"./sink/nats", "^TestLogin$"}
	natsFlights = suite{"./sink/nats", "^TestFlights$"}
)

// natsMutants has mutants of the sink for NATS JetStream.
var natsMutants = []mutant{
	wrong("nats-any-answer-is-an-ack", "Any answer acknowledges an event.",
		edits{{"sink/nats/transport.go", "if err == nil && (a.Stream != t.cfg.Stream || a.Seq == 0) {", "if err == nil && a.Stream == \"\\n\" {"}}, natsAnswers),
	wrong("nats-any-stream-acknowledges", "The answer of another stream acknowledges an event.",
		edits{{"sink/nats/transport.go", "(a.Stream != t.cfg.Stream || a.Seq == 0)", "a.Seq == 0"}}, natsAnswers),
	wrong("nats-error-is-an-ack", "An answer with an error acknowledges an event.",
		edits{{"sink/nats/transport.go", "	a, err := read(m)\n	if err == nil && (", "	a, err := read(m)\n	if errors.As(err, new(*apiError)) {\n		return nil\n	}\n	if err == nil && ("}}, natsAnswers),
	wrong("nats-stream-is-not-expected", "The server is not asked to refuse a message that another stream would take.",
		edits{{"sink/nats/message.go", "	set(headerStream, stream)\n", ""}}, natsAnswers, natsMessage),
	wrong("nats-id-of-the-event", "The id of a message is the id of the event, which two events may have.",
		edits{{"sink/nats/message.go", "set(headerMsgID, rec.EventID())", "set(headerMsgID, string(rec.ID))"}}, suite{"./sink/nats", "^TestRepeats$"}),
	wrong("nats-position-is-one-event", "Two events never have one position.",
		edits{{"router/record.go", `return r.Position() + "/" + string(r.ID)`, "return r.Position()"}}, suite{"./sink/nats", "^TestPositionOfAnotherEvent$"}),
	wrong("nats-no-message-id", "A message has no id, so a repeat is stored again.",
		edits{{"sink/nats/message.go", "	set(headerMsgID, rec.EventID())\n", ""}}, suite{"./sink/nats", "^TestRepeats$"}),
	wrong("nats-no-stream-is-an-outage", "A subject without a stream is an outage.",
		edits{{"sink/nats/transport.go", "f.Meaning, f.Code, f.Err = lane.Missing, lane.CodeMissing, errors.New(\"no stream", "f.Meaning, f.Code, f.Err = lane.Again, lane.CodeMissing, errors.New(\"no stream"}}, natsAnswers),
	wrong("nats-full-is-poison", "A stream that is full refuses the event for good.",
		edits{{"sink/nats/transport.go", "	case tooLargeForStream, headersTooLarge:", "	case tooLargeForStream, headersTooLarge, 10077:"}}, natsAnswers),
	wrong("nats-too-large-is-an-outage", "A message that is too large for the stream is sent again and again.",
		edits{{"sink/nats/transport.go", "	case tooLargeForStream, headersTooLarge:", "	case headersTooLarge:"}}, natsAnswers),
	wrong("nats-refusal-is-an-outage", "A permission that is missing is a lost connection.",
		edits{{"sink/nats/transport.go", "	case denied != nil:", "	case denied != nil && t.hosts == \"\":"}}, suite{"./sink/nats", "^TestPermissions$"}),
	wrong("nats-refusal-of-another-subject", "A refusal of one subject refuses all that is in flight.",
		edits{{"sink/nats/dial.go", "fmt.Sprintf(\"Publish to %q\", subject)", "fmt.Sprintf(\"Publish to %.1q\", subject)[:10]"}}, suite{"./sink/nats", "^TestPermissions$"}),
	wrong("nats-order-to-the-server", "A header of the event may be an order to the server.",
		edits{{"sink/nats/message.go", "		case len(h.Name) >= len(ofServer) && strings.EqualFold(h.Name[:len(ofServer)], ofServer):\n", "		case h.Name == ofServer:\n"}}, natsMessage),
	wrong("nats-header-is-changed", "A text with a line break is sent, and changed.",
		edits{{"sink/nats/message.go", "return !strings.ContainsAny(s, \"\\r\\n\") && ", "return "}}, natsMessage),
	wrong("nats-lost-login-is-a-refusal", "A server that cannot be reached refuses the login.",
		edits{{"sink/nats/dial.go", "	case isLogin(err):", "	case isLogin(err) || errors.Is(err, nats.ErrNoServers):"}}, natsLogin),
	wrong("nats-account-full-is-poison", "An account that is full refuses the event for good.",
		edits{{"sink/nats/transport.go", "	case tooLargeForStream, headersTooLarge:", "	case tooLargeForStream, headersTooLarge, 10002:"}}, natsLimits),
	wrong("nats-limit-of-the-server", "An account takes a message as large as the server does.",
		edits{{"sink/nats/dial.go", "		err = c.nc.FlushTimeout(t.cfg.Timeout) // max_payload of the account comes after the login\n", ""}}, natsLimits),
	wrong("nats-login-never-expires", "The error does not say that the JWT has expired.",
		edits{{"sink/nats/dial.go", "!until.IsZero() && time.Now().After(until)", "until.IsZero() && time.Now().After(until)"}}, suite{"./sink/nats", "^TestCredentialsFile$"}),
	wrong("nats-answer-of-another-message", "An answer is that to the message that was sent last.",
		edits{{"sink/nats/flight.go", "		c.land(number, m, nil)\n", "		_ = number\n		c.mu.Lock()\n		n := c.last\n		c.mu.Unlock()\n		c.land(n, m, nil)\n"}}, natsFlights),
	wrong("nats-late-message-may-arrive", "The connection of a message that is not answered in time goes on.",
		edits{{"sink/nats/flight.go", "	c.End()\n	for _, f := range late", "	for _, f := range late"}}, natsFlights),
	wrong("nats-lost-answer-is-awaited", "What is in flight when the connection is lost waits for its answer.",
		edits{{"sink/nats/flight.go", "c.take(func(*flight) bool { return true })", "c.take(func(*flight) bool { return false })"}}, natsFlights),
	wrong("nats-subject-never-drops", "A stream that refuses what is new drops nothing, whatever its limit for a subject.",
		edits{{"sink/nats/durability.go", "s.MaxSubject > 0 && (s.Discard != \"new\" || !s.PerSubject)", "s.MaxSubject > 0 && s.Discard != \"new\""}}, suite{"./sink/nats", "^TestDurability$"}),
	wrong("nats-two-connections", "Each caller opens a connection of its own.",
		edits{{"sink/lane/link.go", "		if wait == nil {", "		if true {"}, {"sink/lane/link.go", "	close(l.dialing)\n	l.dialing = nil\n", ""}}, suite{"./sink/lane", "^TestLink$"}),
	wrong("nats-asks-in-turn", "After a failure each lane connects at once.",
		edits{{"sink/lane/link.go", "	f := *g.Why\n	return &f\n", "	return nil\n"}}, suite{"./sink/lane", "^TestLink$"}),
}
