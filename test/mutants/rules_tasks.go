package main

var (
	tasksArgs    = suite{"./inbox/riverinbox", "^Test"}
	tasksRepeats = suite{"./test/ends/tasks", "^TestRepeatedEvents$"}
	queueRule    = suite{"./outbox/pgxoutbox", "^TestRecorderQueue$"}
)

// tasksMutants has mutants of the rules of docs/tasks.md and of pgxoutbox.Queue.
var tasksMutants = []mutant{
	wrong("tasks-default-states", "An event whose job was cancelled or discarded does not become a job again.",
		edits{{"inbox/riverinbox/riverinbox.go", "rivertype.JobStates()", "rivertype.UniqueOptsByStateDefault()"}}, tasksArgs, tasksRepeats),
	wrong("tasks-topic-alone", "Each event of a topic becomes a job of its own.",
		edits{{"inbox/riverinbox/riverinbox.go", "`json:\"event_id\" river:\"unique\"`", "`json:\"event_id\"`"}}, tasksRepeats),
	wrong("tasks-without-id", "A record without an id does not become a job.",
		edits{{"inbox/riverinbox/riverinbox.go", "a.Topic == \"\" || a.EventID == \"\"", "a.Topic == \"\""}}, tasksArgs),
	wrong("queue-before-check", "Queue adds nothing to the batch if an event is not valid.",
		edits{{"outbox/pgxoutbox/pgxoutbox.go", "	if err != nil {\n		return err\n	}\n	for _, s", "	if err != nil {\n		batch.Queue(\"\")\n		return err\n	}\n	for _, s"}}, queueRule),
}
