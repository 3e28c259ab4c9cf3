package main

import "fmt"

// coveredFaults returns the faults of the catalogue that a whole run must include, each in a row or in the simulator.
func coveredFaults() []string {
	var ids []string
	for _, r := range [][2]int{
		{1, 6},
		{9, 27},
		{29, 31},
		{33, 37},
		{40, 48},
		{50, 53},
		{55, 55},
		{57, 76},
		{82, 82},
		{84, 84},
		{86, 98},
		{111, 111},
		{125, 127},
	} {
		for n := r[0]; n <= r[1]; n++ {
			ids = append(ids, fmt.Sprintf("F%02d", n))
		}
	}
	return ids
}

// gap is a part of the catalogue that is not covered.
type gap struct{ ids, why string }

var uncoveredFaults = []gap{
	{"F07, F08", "out of memory: only F48 has a memory limit; without a disk: the daemon writes to none"},
	{"F28", "a synchronous standby that is missing during a commit: documented, without a row"},
	{"F32, F39", "tested in `test/integration` and `relay`, without a row"},
	{"F38", "a failover to a standby without the slot: the start finds what it finds in F29"},
	{"F49", "many small transactions: a question for `make bench`"},
	{"F54", "a full disk under pg_wal: not run"},
	{"F56", "`TestKafkaSecurity` and `TestTokensExpire`, without a row; poolers were not run"},
	{"F77 to F81", "Kafka transactions: not built ([ADR 23](adr/0023-no-kafka-transactions.md))"},
	{"F83", "two versions of the daemon: there is no second version yet; a record of another version is a row"},
	{"F110, F112 to F116, F144", "tested in `relay`, `replication` and `sink/kafka`, without a row"},
	{"F120 to F124", "tested in `internal/audit` and `internal/recovery`, without a row"},
	{"F130 to F143", "faults of consumers: tested in `test/ends`, without a row"},
	{"F85", "a day under faults: `make prove` takes about two hours"},
}

// limits are what no row can show.
var limits = []string{
	"Power cuts: brokers and servers share the kernel of one machine.",
	"The loss of a partition's replicas: Kafka's promise.",
	"The clocks of real machines: F73 moves the simulator's clock.",
}
