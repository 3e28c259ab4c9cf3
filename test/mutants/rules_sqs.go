package main

var (
	sqsAnswers = suite{"./sink/aws", "^TestAnswers$"}
	sqsBatches = suite{"./sink/aws", "^TestBatches$"}
	sqsMessage = suite{"./sink/aws", "^TestMessage$"}
	snsAnswers = suite{"./sink/aws", "^TestSNSAnswers$"}
	snsOrder   = suite{"./sink/aws", "^TestSNSOrder$"}
	snsRequest = suite{"./sink/aws", "^TestSNSRequest$"}

	snsUnsubscribed = suite{"./sink/aws", "^TestSNSUnsubscribed$"}
	snsReads        = suite{"./sink/aws", "^TestSNSReads$"}
)

// sqsMutants has mutants of the sink for SQS and SNS.
var sqsMutants = []mutant{
	wrong("sqs-any-answer-is-an-ack", "A message that the answer does not name is stored.",
		edits{{"sink/aws/transport.go", "	return &lane.Failure{Op: e.op, Code: lane.CodeUnavailable, Err: errUnnamed}\n", "	return nil\n"}}, sqsAnswers),
	wrong("sqs-ack-of-another", "A message is stored if any message of its batch is.",
		edits{{"sink/aws/transport.go", "s.ID == id && ", ""}}, sqsAnswers),
	wrong("sqs-failed-is-an-ack", "A message that failed is stored if the answer has it among the successful ones too.",
		edits{{"sink/aws/transport.go", "	for i := range out.failed {", "	for i := range out.failed[:0] {"}}, sqsAnswers),
	wrong("sqs-fault-of-the-service-is-poison", "A message that the service could not store is poison.",
		edits{{"sink/aws/transport.go", "why.Meaning == lane.Refused && !f.SenderFault", "why.Meaning == lane.Refused && f.SenderFault"}}, sqsAnswers),
	wrong("sqs-unknown-is-poison", "A code that is not known refuses the message.",
		edits{{"sink/aws/failure.go", "	case is(codesContent):", "	case is(codesContent) || status == 0:"}}, sqsAnswers),
	wrong("sqs-throttled-is-denied", "A service that has too many requests refuses the daemon.",
		edits{{"sink/aws/failure.go", "	case throttled || strings.Contains(code, \"Throttl\"):", "	case throttled && code == \"\":"}}, sqsAnswers),
	wrong("sqs-secret-in-an-error", "An error repeats the request that the service quotes.",
		edits{{"sink/aws/failure.go", "		f.Err = fmt.Errorf(\"%s answers %s (its message is not shown, it may repeat the request)\", t.service, code)\n", ""}}, sqsAnswers),
	wrong("sqs-batch-is-poison", "If a batch is refused as a whole, all its messages are.",
		edits{{"sink/aws/transport.go", "	if len(batch) > 1 && why", "	if len(batch) > 10 && why"}}, sqsBatches),
	wrong("sqs-request-for-each", "A message does not wait for a full request.",
		edits{{"sink/aws/batch.go", " || q.open > 0 && !full {", " || q.open > maxOpen && !full {"}}, sqsBatches),
	wrong("sqs-request-too-large", "A request has ten messages of any size.",
		edits{{"sink/aws/batch.go", "(n == 0 || size+q.waiting[n].message.size <= maxBytes)", "true"}}, sqsBatches),
	wrong("sqs-id-of-the-event", "The deduplication id is the id of the event, which two events may have.",
		edits{{"sink/aws/message.go", "once: allowed(rec.EventID())", "once: allowed(string(rec.ID))"}}, suite{"./sink/aws", "^TestRepeats$"}, sqsMessage),
	wrong("sqs-position-is-one-event", "Two events never have one position.",
		edits{{"router/record.go", `return r.Position() + "/" + string(r.ID)`, "return r.Position()"}}, suite{"./sink/aws", "^TestPositionOfAnotherEvent$"}),
	wrong("sqs-one-group-without-a-key", "Events without a key are one group, which is in several lanes.",
		edits{{"sink/aws/message.go", "		return allowed(string(rec.ID))\n", "		return allowed(\"\")\n"}}, sqsMessage),
	wrong("sqs-text-is-changed", "Bytes that are no text are sent as text.",
		edits{{"sink/aws/message.go", "	case isText(rec.Value):", "	case true:"}}, sqsMessage),
	wrong("sns-any-status-is-an-ack", "An answer with any status that has the form of one of SNS acknowledges a message.",
		edits{{"sink/aws/sns.go", "	if res.StatusCode == http.StatusOK {", "	if res.StatusCode != 0 {"}}, snsAnswers),
	wrong("sns-part-of-an-answer", "An answer that ends in its middle acknowledges the messages that it names until there.",
		edits{{"sink/aws/sns.go", "if err = xml.Unmarshal(text, answer); err == nil {", "if err = xml.Unmarshal(text, answer); len(text) > 0 {"}}, snsOrder),
	wrong("sns-answer-to-something-else", "An answer to another request acknowledges a message.",
		edits{{"sink/aws/sns.go", "		XMLName xml.Name      `xml:\"PublishBatchResponse\"` // nothing else is an answer\n", ""}}, snsOrder),
	wrong("sns-rest-of-a-batch", "If a message of a batch is stored, so is one that the answer does not name.",
		edits{{"sink/aws/transport.go", "	return &lane.Failure{Op: e.op, Code: lane.CodeUnavailable, Err: errUnnamed}\n", "	if len(out.stored) > 0 {\n		return nil\n	}\n	return &lane.Failure{Op: e.op, Code: lane.CodeUnavailable, Err: errUnnamed}\n"}}, snsOrder),
	wrong("sns-without-subscription", "A topic that exists takes events.",
		edits{{"sink/aws/subscription.go", "	case n == 0:\n", "	case n == 1<<60:\n"}}, snsUnsubscribed),
	wrong("sns-unknown-is-a-subscription", "A topic whose answer has no number of subscriptions has one.",
		edits{{"sink/aws/subscription.go", "		return errUncounted\n", "		return nil\n"}}, snsUnsubscribed),
	wrong("sns-unknown-is-none", "A topic whose answer has no number of subscriptions has none.",
		edits{{"sink/aws/subscription.go", "		return errUncounted\n", "		return errUnsubscribed\n"}}, snsUnsubscribed),
	wrong("sns-unread-is-poison", "An event is poison if SNS refuses to say whether its topic has a subscription.",
		edits{{"sink/aws/subscription.go", "if why.Meaning == lane.Refused {", "if why.Meaning == lane.Denied {"}}, snsUnsubscribed),
	wrong("sns-read-for-each-batch", "A topic is read before each request.",
		edits{{"sink/aws/subscription.go", "	d.open, d.closed = true, lane.Gate{}\n", ""}}, snsReads),
	wrong("sns-read-for-each-event", "While a topic has no subscription, it is read for each event that waits.",
		edits{{"sink/aws/subscription.go", "d.closed.Pass(t.cfg.BackoffMin, t.cfg.BackoffMax/10); why != nil {", "d.closed.Pass(0, 0); why != nil {"}}, snsReads),
	wrong("sns-created-while-it-runs", "What was read of a topic holds until the session ends.",
		edits{{"sink/aws/subscription.go", "		d.open = false\n", ""}}, snsReads),
	wrong("sns-known-without-an-answer", "A topic is the same one after a request that was not answered.",
		edits{{"sink/aws/subscription.go", "	case lane.CodeMissing, lane.CodeConnection, lane.CodeTimeout:", "	case lane.CodeMissing:"}}, snsReads),
	wrong("sns-topic-is-content", "An account or a region in which there is no topic refuses what an event contains.",
		edits{{"sink/aws/failure.go", "	case is(codesMissing), code == \"InvalidParameter\" && strings.Contains(message, \"TopicArn\"):", "	case is(codesMissing):"}}, snsAnswers),
	wrong("sns-signed-for-sqs", "A request to SNS is signed for SQS.",
		edits{{"sink/aws/sns.go", "\"sns\", c.region, time.Now()", "\"sqs\", c.region, time.Now()"}}, snsRequest),
	wrong("sns-one-partition", "A topic in China has the partition of the rest of the world.",
		edits{{"sink/aws/service.go", "strings.HasPrefix(region, \"cn-\")", "region == \"cn-\""}}, snsRequest),
	wrong("sns-no-deduplication-id", "A message of a topic has no deduplication id of ours.",
		edits{{"sink/aws/sns.go", "	form.Set(entry+\"MessageDeduplicationId\", m.once)\n", ""}}, snsRequest),
	wrong("sns-size-of-sqs", "A topic takes a message as large as a queue does.",
		edits{{"sink/aws/service.go", "		return 256 << 10\n", "		return 1 << 20\n"}}, suite{"./sink/aws", "^TestSNSSubscription$"}),
}
