package main

// handOvers are the tests of the SQL with which a number of daemons hands the outbox over to another one.
func handOvers(name string) suite { return suite{"./sql", "^TestHandOverOnServer$/^" + name + "$"} }

const handOverSQL = "sql/handover.sql"

// handOverMutants has mutants of the hand-over between daemons.
var handOverMutants = []mutant{
	wrong("handover-beside-writers", "Writers may go on while the daemons hand over.",
		edits{{handOverSQL, "EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', outbox)", "PERFORM outbox"}}, handOvers("waits")),
	wrong("handover-of-a-partition-of-none", "A partition that no publication of a new daemon has is delivered.",
		edits{{handOverSQL, "cardinality(names) <> 1", "cardinality(names) > 1"}}, handOvers("refused")),
	wrong("handover-of-a-partition-of-two", "A partition may be in the publications of two new daemons.",
		edits{{handOverSQL, "cardinality(names) <> 1", "cardinality(names) < 1"}}, handOvers("refused")),
	wrong("handover-to-some-rows", "A publication with a row filter has all rows of the partition.",
		edits{{handOverSQL, "to_jsonb(r)->>'prqual' IS NULL", "true"}}, handOvers("refused")),
	wrong("handover-to-updates", "A publication that publishes no inserts delivers the rows.",
		edits{{handOverSQL, "AND pubinsert AND", "AND"}}, handOvers("refused")),
	wrong("handover-needs-no-names", "What the old daemons read need not be read.",
		edits{{handOverSQL, "pubname = name AND to_regclass", "true OR pubname = name AND to_regclass"}, {handOverSQL, "FROM unnest(old_slots) name WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name)\n", "FROM unnest(old_slots) name WHERE false\n"}},
		handOvers("refused")),
	wrong("handover-without-a-daemon", "A slot that no daemon reads is handed over.",
		edits{{handOverSQL, "slot_name = name AND active)", "slot_name = name)"}}, handOvers("refused")),
	wrong("handover-to-unknown-publications", "A slot knows every publication that exists.",
		edits{{handOverSQL, "age(catalog_xmin) >= least(age(p.xmin), age(r.xmin))", "age(catalog_xmin) >= 2000000000"}}, handOvers("refused")),
	wrong("handover-to-tables-added-later", "A slot that knows a publication knows its tables.",
		edits{{handOverSQL, "least(age(p.xmin), age(r.xmin))", "age(p.xmin)"}}, handOvers("refused")),
	wrong("handover-waits-for-no-transaction", "The slots know the publications at once.",
		edits{{"sql/known.sql", "age(catalog_xmin) <= age(next)", "true"}}, handOvers("known")),
	wrong("handover-before-delivery", "The daemons can be stopped before they have delivered everything.",
		edits{{handOverSQL, "bool_and(confirmed_flush_lsn >= written)", "true"}}, handOvers("waits")),
	wrong("handover-flushes-nothing", "A slot confirms WAL that the server has not flushed.",
		edits{{handOverSQL, "::int >= 170000", "::int >= 990000"}}, handOvers("known")),
	wrong("handover-of-running-daemons", "The hand-over need not wait until the daemons have stopped.",
		edits{{handOverSQL, "count(*) = cardinality(old_slots) AND NOT bool_or(active)", "true"}}, handOvers("waits")),
	wrong("handover-keeps-a-slot", "A slot that has the name of a new one is as good as a copy.",
		edits{{handOverSQL, "        PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY (new_slots);\n", ""}}, handOvers("waits")),
	wrong("handover-keeps-publications", "The publications of the old daemons stay.",
		edits{{handOverSQL, "DROP PUBLICATION %I;", "-- %I;"}}, handOvers("done")),
	wrong("handover-believes-any-publication", "The publications of the new daemons exist, so the old ones have handed over.",
		edits{{handOverSQL, "AND obj_description(p.oid, 'pg_publication') = mark", ""}}, handOvers("done")),
	wrong("handover-again-after-it", "What was handed over is handed over again.",
		edits{{handOverSQL, "NOT EXISTS (\n        SELECT FROM pg_publication p", "EXISTS (\n        SELECT FROM pg_publication p"}}, handOvers("done")),
	wrong("handover-copies-what-is-gone", "A new slot that is missing is copied from an old one, whether that exists or not.",
		edits{{handOverSQL, "slot_name IN (name, old_slots[1])", "slot_name IN (name, old_slots[1]) OR true"}}, handOvers("done")),
	wrong("handover-leaves-the-table-open", "Rows can be written into the table that no daemon reads any more.",
		edits{{handOverSQL, "CHECK (false)", "CHECK (true)"}}, handOvers("whole")),
	wrong("handover-over-another-table", "The name that the table gets is free.",
		edits{{handOverSQL, "exists: rename or drop it'", "exists' || NULL"}}, handOvers("whole")),
}
