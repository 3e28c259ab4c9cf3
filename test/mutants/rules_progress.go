package main

// The suites, by what they check.
var silence = suite{"./relay", "^(TestServerDecodesForLong|TestSilentServer)$"}

// progressMutants has mutants of when a session goes on, and of what the relay says about it.
var progressMutants = []mutant{
	{
		name:  "silence-is-the-end",
		rule:  "A server that sends nothing for wal_sender_timeout is gone, also if its walsender works.",
		edits: []edit{{"relay/confirm.go", "	if now.Sub(s.lastWork) > limit {\n", "	if true {\n"}},
		tests: []suite{silence},
	},
	{
		name:  "silence-is-decoding",
		rule:  "A server that sends nothing decodes a transaction, also if its walsender waits.",
		edits: []edit{{"relay/confirm.go", "	if now.Sub(s.lastWork) > limit {\n", "	if false {\n"}},
		tests: []suite{silence},
	},
}
