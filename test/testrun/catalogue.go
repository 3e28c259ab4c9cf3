package main

import "fmt"

// coveredFaults returns the faults of the catalogue that a whole run must include, each in a row or in the simulator.
func coveredFaults() []string {
	var ids []string
	for _, r := range [][2]int{
		{1, 6}, {9, 27}, {29, 31}, {33, 37}, {40, 48}, {50, 53}, {55, 55}, {57, 57}, {59, 76}, {82, 82}, {84, 84}, {86, 98},
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
	{"F07, F08", "the daemon out of memory, or without a disk: it writes to no disk; one transaction of millions of rows runs under a cgroup's limit (F48), but nothing else does"},
	{"F28", "a synchronous standby that is missing while a transaction commits: an event may precede the visibility of its row, which is documented; no row of its own"},
	{"F32, F39", "the slot's idle time-out (PostgreSQL 18) and a server that waits for its own standbys are tested in `test/integration` and `relay`, without a row here"},
	{"F38", "failover to a standby without the slot: the start meets what F29 meets, no slot"},
	{"F49", "as fast as the machine goes: a benchmark's question"},
	{"F54", "a full disk under pg_wal: not run"},
	{"F56", "certificates and secrets of Kafka: TestKafkaSecurity, not by this table; poolers were not run"},
	{"F77 to F81", "delivery in Kafka transactions, which is not built (docs/adr/0023-no-kafka-transactions.md)"},
	{"F83", "upgrades and downgrades with two builds: there is no second version yet; a position record in the form of the version before is a row"},
	{"F85", "a day's soak: `make prove` ends within the hour"},
}

// limits are what no row can show.
var limits = []string{
	"One machine: brokers and servers share its kernel, so nothing here says what a power cut does to what Kafka acknowledged.",
	"One broker (kfake: three, where leaders move): what a cluster does when it loses replicas of a partition is Kafka's promise, not tested here.",
	"Clocks of real machines were not moved (F73 is by the simulator's clock).",
}
