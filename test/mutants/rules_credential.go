package main

// credentialMutants have one rule wrong about commands that print a secret.
var credentialMutants = []mutant{
	wrong("credential-in-an-error", "An error repeats what the command has printed.",
		edits{{"internal/credential/credential.go", `text = strings.ReplaceAll(text, word, "xxxxx")`, `_ = word`}}, suite{"./internal/credential", "^TestRun$"}),
	wrong("credential-part-of-a-secret", "What is left of a line that was cut can be quoted.",
		edits{{"internal/process/tail.go", "	if t.cut {\n", "	if t.cut && len(t.kept) == 0 {\n"}}, suite{"./internal/credential", "^TestRun$"}),
	wrong("aws-keys-from-anywhere", "The endpoint of a container's credentials may be any server, without TLS.",
		edits{{"internal/credential/aws.go", `u.Scheme != "https" && u.Hostname()`, `u.Scheme == "ftp" && u.Hostname()`}}, suite{"./internal/credential", "^TestCredentials$"}),
	wrong("aws-keys-by-redirect", "A redirect of an endpoint with credentials is followed.",
		edits{{"internal/credential/aws.go", "return http.ErrUseLastResponse", "return nil"}}, suite{"./internal/credential", "^TestCredentials$"}),
	wrong("credential-children-go-on", "Only the command itself is killed, and not what it has started.",
		edits{{"internal/credential/credential.go", "kill(-cmd.Process.Pid, syscall.SIGKILL)", "kill(cmd.Process.Pid, syscall.SIGKILL)"}}, suite{"./internal/credential", "^TestRunEnds$"}),
	wrong("credential-kills-the-group-of-another", "A group may be killed after its command was waited for.",
		edits{{"internal/credential/credential.go", "process.AwaitExit(cmd.Process.Pid)", "_, _ = cmd.Process.Wait()\n\t\tprocess.AwaitExit(0)"}}, suite{"./internal/credential", "^TestGroupIsOurs$"}),
	wrong("credential-of-another-host", "The password of a standby is that of the primary's host.",
		edits{{"internal/config/secret.go", "if all[i], err = c.withPassword(dsn); err != nil {", "if all[i], err = c.withPassword(all[0] + dsn[:0]); err != nil {"}}, suite{"./internal/config", "^TestPasswordCommand$"}),
}
