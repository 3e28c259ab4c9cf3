package main

// all are the wrong rules: the negative controls that a change-data-capture relay must be tested with, and their
// relatives. Of the usual list two have nothing here that they could be planted in: a position written before its commit
// (no position is written), and an old sarama (go.mod names the version).
func all() []mutant {
	var out []mutant
	for _, room := range [][]mutant{confirming, guarding, resuming, reading, ending, producing} {
		out = append(out, room...)
	}
	return out
}
