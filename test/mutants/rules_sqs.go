package main

var (
	sqsAnswers = suite{"./sink/aws", "^TestAnswers$"}
	sqsBatches = suite{"./sink/aws", "^TestBatches$"}
	sqsMessage = suite{"./sink/aws", "^TestMessage$"}
)

// sqsMutants has mutants of the sink for SQS.
var sqsMutants = []mutant{
	wrong("sqs-any-answer-is-an-ack", "A message that the answer does not name is stored.",
		edits{{"sink/aws/transport.go", "	return &lane.Failure{Op: e.op, Code: lane.CodeUnavailable, Err: errUnnamed}\n", "	return nil\n"}}, sqsAnswers),
	wrong("sqs-ack-of-another", "A message is stored if any message of its batch is.",
		edits{{"sink/aws/transport.go", "aws.ToString(s.Id) == id && ", ""}}, sqsAnswers),
	wrong("sqs-failed-is-an-ack", "A message that failed is stored if the answer has it among the successful ones too.",
		edits{{"sink/aws/transport.go", "	for i := range out.Failed {", "	for i := range out.Failed[:0] {"}}, sqsAnswers),
	wrong("sqs-fault-of-the-service-is-poison", "A message that the service could not store is poison.",
		edits{{"sink/aws/transport.go", "why.Meaning == lane.Refused && !f.SenderFault", "why.Meaning == lane.Refused && f.SenderFault"}}, sqsAnswers),
	wrong("sqs-unknown-is-poison", "A code that is not known refuses the message.",
		edits{{"sink/aws/failure.go", "	case is(codesContent):", "	case is(codesContent) || status == 0:"}}, sqsAnswers),
	wrong("sqs-throttled-is-denied", "A service that has too many requests refuses the daemon.",
		edits{{"sink/aws/failure.go", "	case throttled || strings.Contains(code, \"Throttl\"):", "	case throttled && code == \"\":"}}, sqsAnswers),
	wrong("sqs-secret-in-an-error", "An error repeats the request that the service quotes.",
		edits{{"sink/aws/failure.go", "		f.Err = fmt.Errorf(\"SQS answers %s (its message is not shown, it may repeat the request)\", code)\n", ""}}, sqsAnswers),
	wrong("sqs-batch-is-poison", "If a batch is refused as a whole, all its messages are.",
		edits{{"sink/aws/transport.go", "if err != nil && len(batch) > 1 && ", "if err != nil && len(batch) > 10 && "}}, sqsBatches),
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
}
