package main

const unitFile = "deploy/systemd/outboxcdc.service"

var units = suite{"./deploy", "^TestUnit$"}

// systemdMutants has mutants of what the unit does when the daemon ends, and when it has to end.
var systemdMutants = []mutant{
	wrong("systemd-restarts-blindly", "A daemon that has lost its place can be started again.",
		edits{{unitFile, "RestartPreventExitStatus=65 77 78 79", "RestartPreventExitStatus=65 77 78"}}, units),
	wrong("systemd-crash-is-final", "A daemon that has crashed needs a person.",
		edits{{unitFile, "RestartPreventExitStatus=65 77 78 79", "RestartPreventExitStatus=2 65 77 78 79"}}, units),
	wrong("systemd-no-restart", "What ends with an error stays ended.",
		edits{{unitFile, "Restart=on-failure", "Restart=no"}}, units),
	wrong("systemd-gives-up", "A daemon that has ended a few times in a row need not be started again.",
		edits{{unitFile, "StartLimitIntervalSec=0", "StartLimitIntervalSec=60s"}}, units),
	wrong("systemd-kills-in-the-drain", "The drain and what follows it need no more time than the drain.",
		edits{{unitFile, "TimeoutStopSec=45s", "TimeoutStopSec=30s"}}, units),
}
