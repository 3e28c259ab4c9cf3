package main

var (
	tasksArgs    = suite{"./inbox/riverinbox", "^Test"}
	tasksRepeats = suite{"./test/ends/tasks", "^TestRepeatedEvents$"}
	queueRule    = suite{"./outbox/pgxoutbox", "^TestRecorderQueue$"}
)

// tasksMutants has mutants of the rules of docs/tasks.md and of pgxoutbox.Queue.
var tasksMutants = []mutant{
	{
		name:  "tasks-default-states",
		rule:  "An event whose job was cancelled or discarded does not become a job again.",
		edits: []edit{{"inbox/riverinbox/riverinbox.go", "rivertype.JobStates()", "rivertype.UniqueOptsByStateDefault()"}},
		tests: []suite{tasksArgs, tasksRepeats},
	},
	{
		name:  "tasks-topic-alone",
		rule:  "Each event of a topic becomes a job of its own.",
		edits: []edit{{"inbox/riverinbox/riverinbox.go", "`json:\"event_id\" river:\"unique\"`", "`json:\"event_id\"`"}},
		tests: []suite{tasksRepeats},
	},
	{
		name:  "tasks-without-id",
		rule:  "A record without an id does not become a job.",
		edits: []edit{{"inbox/riverinbox/riverinbox.go", "a.Topic == \"\" || a.EventID == \"\"", "a.Topic == \"\""}},
		tests: []suite{tasksArgs},
	},
	{
		name:  "queue-before-check",
		rule:  "Queue adds nothing to the batch if an event is not valid.",
		edits: []edit{{"outbox/pgxoutbox/pgxoutbox.go", "	if err != nil {\n		return err\n	}\n	for _, s", "	if err != nil {\n		batch.Queue(\"\")\n		return err\n	}\n	for _, s"}},
		tests: []suite{queueRule},
	},
}
