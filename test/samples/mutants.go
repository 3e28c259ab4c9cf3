package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is a sample with one rule broken.
type mutant struct {
	rule, file string
	old, new   string // the piece of source, which the file has once, and its replacement
}

// plant changes a copy of the sample.
func (m mutant) plant(dir string) error {
	file := filepath.Join(dir, m.file)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return fmt.Errorf("mutant %s: %s has the replaced text %d times, expected once", m.rule, m.file, n)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o644)
}

// The rules that every sample keeps.
const (
	ruleMark      = "mark"           // a record whose position is not larger than the mark is a duplicate
	ruleEpoch     = "epoch"          // a record of a later epoch is new, whatever its timeline and LSN are
	ruleID        = "id"             // an event whose id is stored is a duplicate
	ruleRecovered = "recovered"      // the id alone decides about a record of recover
	ruleConsumer  = "consumer-tx"    // mark, id and effect are committed together
	ruleProducer  = "producer-tx"    // row and event are committed together
	ruleOffset    = "database-first" // the offset is committed after the database
)

// mutants are those of each language. The SQL files are single statements, so no rule about transactions can be broken there.
var mutants = map[string][]mutant{
	"sql": {
		{ruleMark, "consume.sql", "OR EXISTS (SELECT FROM moved)", "OR true"},
		{ruleEpoch, "consume.sql", "coalesce(nullif(excluded.epoch, 0), mark.epoch)", "mark.epoch"},
		{ruleID, "consume.sql", "ON CONFLICT DO NOTHING", "ON CONFLICT (consumer, id) DO UPDATE SET at = now()"},
		{ruleRecovered, "consume.sql", "IS NULL OR $6::boolean", "IS NULL"},
	},
	"python": {
		{ruleMark, "consumer.py", "mark).rowcount == 0", "mark).rowcount < 0"},
		{ruleEpoch, "consumer.py", "coalesce(nullif(excluded.epoch, 0), mark.epoch)", "mark.epoch"},
		{ruleID, "consumer.py", ".rowcount == 1", ".rowcount >= 0"},
		{ruleRecovered, "consumer.py", ` and "outboxcdc-recovered" not in headers`, ""},
		{ruleConsumer, "consumer.py", "with db.transaction():", "if True:"},
		{ruleProducer, "producer.py", "with db.transaction():", "if True:"},
		{ruleOffset, "consumer.py", "# One transaction for", "consumer.commit(asynchronous=False)  #"},
	},
	"node": {
		{ruleMark, "consumer.js", "if (rowCount === 0)", "if (rowCount < 0)"},
		{ruleEpoch, "consumer.js", "coalesce(nullif(excluded.epoch, 0), mark.epoch)", "mark.epoch"},
		{ruleID, "consumer.js", ".rowCount === 1", ".rowCount >= 0"},
		{ruleRecovered, "consumer.js", " && !('outboxcdc-recovered' in headers)", ""},
		{ruleConsumer, "consumer.js", "await db.query('BEGIN')", ""},
		{ruleProducer, "producer.js", "await db.query('BEGIN')", ""},
		{
			ruleOffset, "consumer.js", "await db.query('BEGIN')",
			"await consumer.commitOffsets([{ topic, partition, offset: String(BigInt(messages.at(-1).offset) + 1n) }]); await db.query('BEGIN')",
		},
	},
	"java": {
		{ruleMark, "Consumer.java", "position) == 0", "position) < 0"},
		{ruleEpoch, "Consumer.java", "coalesce(nullif(excluded.epoch, 0), mark.epoch)", "mark.epoch"},
		{ruleID, "Consumer.java", "group, id) == 0", "group, id) < 0"},
		{ruleRecovered, "Consumer.java", `&& header(record, "outboxcdc-recovered") == null`, ""},
		{ruleConsumer, "Consumer.java", "group, id) == 0) return;", "group, id) == 0) return; db.commit();"},
		{ruleProducer, "Producer.java", "rows.getLong(1);", "rows.getLong(1); db.commit();"},
		{ruleOffset, "Consumer.java", "// One transaction for", "consumer.commitSync(); //"},
	},
	"rust": {
		{ruleMark, "src/bin/consumer.rs", "&position])? == 0", "&position])? == 2"},
		{ruleEpoch, "src/bin/consumer.rs", "coalesce(nullif(excluded.epoch, 0), mark.epoch)", "mark.epoch"},
		{ruleID, "src/bin/consumer.rs", "&id])? == 1", "&id])? < 2"},
		{ruleRecovered, "src/bin/consumer.rs", `header(record, "outboxcdc-recovered")`, "None::<&str>"},
		{ruleConsumer, "src/bin/consumer.rs", "&id])? == 1 {", `&id])? == 1 { tx.batch_execute("COMMIT; BEGIN")?;`},
		{ruleProducer, "src/bin/producer.rs", "?.get(0);", `?.get(0); tx.batch_execute("COMMIT; BEGIN")?;`},
		{ruleOffset, "src/bin/consumer.rs", "// One transaction for", "consumer.commit_consumer_state(CommitMode::Sync)?; //"},
	},
}
