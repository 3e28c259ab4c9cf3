package main

// all returns the wrong rules: the usual negative controls for a change-data-capture relay, and their relatives. One of
// the usual list has no place here: an old sarama (go.mod names the version).
func all() []mutant {
	var out []mutant
	for _, room := range [][]mutant{
		confirmMutants,
		guardMutants,
		resumeMutants,
		readMutants,
		endMutants,
		kafkaMutants,
		sinkMutants,
		rabbitMutants,
		credentialMutants,
		registryMutants,
		redisMutants,
		natsMutants,
		sqsMutants,
		historyMutants,
		epochMutants,
		leaseMutants,
		auditMutants,
		deletedMutants,
		orderMutants,
		tableMutants,
		handOverMutants,
		recoveryMutants,
		progressMutants,
		inboxMutants,
		parkMutants,
		tasksMutants,
		retentionMutants,
		heldMutants,
		chartMutants,
		systemdMutants,
	} {
		out = append(out, room...)
	}
	return out
}
