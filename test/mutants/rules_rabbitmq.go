package main

var (
	rabbitContract = suite{"./sink/rabbitmq", "^TestContract$/^no_(exchange|queue)$/^(Order|AckLost|Lost|NoAnswer|Unavailable|Missing|Refused|Forbidden)$"}
	rabbitReturns  = suite{"./sink/rabbitmq", "^TestReturnedAmongAcknowledged$"}
	rabbitMessage  = suite{"./sink/rabbitmq", "^TestMessage$"}
	rabbitLimits   = suite{"./sink/rabbitmq", "^TestLimits$"}
	rabbitBlocked  = suite{"./sink/rabbitmq", "^TestBlocked$"}
)

// rabbitMutants has mutants of the sink for RabbitMQ.
var rabbitMutants = []mutant{
	wrong("rabbitmq-two-writes-at-once", "What is written while a write is under way is written beside it.",
		edits{{"sink/rabbitmq/writer.go", "	if !g.writing {\n", "	if true {\n"}}, suite{"./sink/rabbitmq", "^TestGatheringConn$"}),
	{
		name:  "rabbitmq-ack-before-the-confirm",
		rule:  "A message is acknowledged when it was written to the connection.",
		edits: []edit{{"sink/rabbitmq/channel.go", "	ch.sent = append(ch.sent, f)\n	if !ch.waiting {\n		ch.waiting = true\n		go ch.await()\n	}\n", "	go f.landed(true, \"\", nil)\n"}},
		tests: []suite{rabbitContract},
	},
	{
		name:  "rabbitmq-returned-is-an-ack",
		rule:  "A message that was returned and confirmed counts as acknowledged.",
		edits: []edit{{"sink/rabbitmq/channel.go", `f.landed(returned == "", returned, nil)`, "f.landed(true, returned, nil)"}},
		tests: []suite{rabbitReturns},
	},
	{
		name:  "rabbitmq-returns-by-id-once",
		rule:  "Of several messages with one id, only one counts as returned.",
		edits: []edit{{"sink/rabbitmq/channel.go", "					f.returned = fmt.Sprintf(\"%d %s\", r.ReplyCode, r.ReplyText)\n", "					f.returned = fmt.Sprintf(\"%d %s\", r.ReplyCode, r.ReplyText)\n					break\n"}},
		tests: []suite{rabbitReturns},
	},
	{
		name:  "rabbitmq-nack-is-an-ack",
		rule:  "A message that the broker could not store counts as acknowledged.",
		edits: []edit{{"sink/rabbitmq/channel.go", "if err == nil && f.confirm.Acked() {", "if err == nil && (f.confirm.Acked() || !ch.amqp.IsClosed()) {"}},
		tests: []suite{rabbitContract},
	},
	{
		name:  "rabbitmq-closed-is-an-ack",
		rule:  "A message whose channel was closed before its confirm counts as acknowledged.",
		edits: []edit{{"sink/rabbitmq/channel.go", "if err == nil && f.confirm.Acked() {", "if err == nil && (f.confirm.Acked() || ch.amqp.IsClosed()) {"}},
		tests: []suite{rabbitContract},
	},
	{
		name:  "rabbitmq-waits-for-the-first",
		rule:  "A message waits for the confirms of all that were sent before it.",
		edits: []edit{{"sink/rabbitmq/channel.go", "		case <-patience.C:\n", ""}},
		tests: []suite{{"./sink/rabbitmq", "^TestConfirmsOutOfOrder$"}},
	},
	{
		name:  "rabbitmq-not-mandatory",
		rule:  "A message that no queue takes is not returned.",
		edits: []edit{{"sink/rabbitmq/channel.go", "string(f.rec.Key), true, false, publishing", "string(f.rec.Key), false, false, publishing"}},
		tests: []suite{rabbitMessage},
	},
	{
		name:  "rabbitmq-not-persistent",
		rule:  "A message is not persistent, and a restart of the broker loses it.",
		edits: []edit{{"sink/rabbitmq/message.go", "DeliveryMode: amqp.Persistent, ", ""}},
		tests: []suite{rabbitMessage},
	},
	{
		name:  "rabbitmq-missing-exchange-is-poison",
		rule:  "An event whose exchange is missing is poison.",
		edits: []edit{{"sink/rabbitmq/transport.go", "f.Meaning, f.Code, f.Err = lane.Missing, lane.CodeMissing, &unknownExchange{f.Err}", "f.Meaning, f.Code, f.Err = lane.Refused, lane.CodeMissing, &unknownExchange{f.Err}"}},
		tests: []suite{{"./sink/rabbitmq", "^TestAnswersOfOthers$"}},
	},
	wrong("rabbitmq-connection-limit-is-a-refusal", "A broker with too many connections refuses the daemon.",
		edits{{"sink/rabbitmq/dial.go", "	case answered && isLimit(answer):\n", "	case false:\n"}}, rabbitLimits),
	wrong("rabbitmq-channel-limit-is-a-refusal", "A broker with too many channels refuses the daemon.",
		edits{{"sink/rabbitmq/transport.go", "	case answered && isLimit(answer):\n", "	case false:\n"}}, rabbitLimits),
	wrong("rabbitmq-refusal-is-a-limit", "A virtual host that the user may not use counts as a limit.",
		edits{{"sink/rabbitmq/dial.go", "answer.Code == amqp.NotAllowed && limitText.MatchString(answer.Reason)", "answer.Code == amqp.NotAllowed"}}, rabbitLimits),
	{
		name:  "rabbitmq-lost-login-is-a-refusal",
		rule:  "A connection that is lost during the login counts as a wrong password.",
		edits: []edit{{"sink/rabbitmq/dial.go", "return answer, ok && answer.Server", "return answer, ok"}},
		tests: []suite{{"./sink/rabbitmq", "^TestLogin$"}},
	},
	{
		name:  "rabbitmq-sends-while-blocked",
		rule:  "Messages are sent while the broker says that it takes nothing.",
		edits: []edit{{"sink/rabbitmq/connection.go", "	if why == \"\" {\n		return \"\"\n", "	if why = \"\"; why == \"\" {\n		return \"\"\n"}},
		tests: []suite{rabbitBlocked},
	},
	{
		name:  "rabbitmq-cut-while-blocked",
		rule:  "The connection is cut because a broker that takes nothing does not answer, and then everything in flight is stored twice.",
		edits: []edit{{"sink/rabbitmq/connection.go", "	if c.blocked != \"\" {\n		return false\n	}\n", ""}},
		tests: []suite{rabbitBlocked},
	},
	{
		name:  "rabbitmq-no-time-limit",
		rule:  "A message may be without an answer for ever.",
		edits: []edit{{"sink/rabbitmq/connection.go", "now.Sub(since) >= c.timeout", "now.Sub(since) >= 1000*c.timeout"}},
		tests: []suite{rabbitBlocked},
	},
	{
		name:  "rabbitmq-long-key-is-sent",
		rule:  "A key that is no routing key is sent, and takes the connection with it.",
		edits: []edit{{"sink/rabbitmq/message.go", "if text.bytes > maxShort {", "if text.bytes > 2*maxShort {"}},
		tests: []suite{{"./sink/rabbitmq", "^TestCheck$"}},
	},
	{
		name:  "rabbitmq-size-of-another-message",
		rule:  "Each message of a channel counts as refused when one of them was too large.",
		edits: []edit{{"sink/rabbitmq/transport.go", "m != nil && m[1] == strconv.Itoa(size)", "m != nil && strconv.Itoa(size) != \"\""}},
		tests: []suite{{"./sink/rabbitmq", "^TestAnswersOfOthers$"}},
	},
	{
		name:  "rabbitmq-one-channel-for-all",
		rule:  "All exchanges share a channel, and one that is missing stops the rest.",
		edits: []edit{{"sink/rabbitmq/transport.go", "ch, err := c.channel(rec.Topic)", `ch, err := c.channel("")`}},
		tests: []suite{{"./sink/rabbitmq", "^TestAnswersOfOthers$"}},
	},
}
