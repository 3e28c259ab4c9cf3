package main

// all are the wrong rules: the negative controls that a change-data-capture relay must be tested with, and their
// relatives. Of the usual list one has nothing here that it could be planted in: an old sarama
// (go.mod names the version).
func all() []mutant {
	var out []mutant
	for _, room := range [][]mutant{confirming, guarding, resuming, reading, ending, producing, deduplicating, leasing} {
		out = append(out, room...)
	}
	return out
}
