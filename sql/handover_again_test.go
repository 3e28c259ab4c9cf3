package sql

import (
	"errors"
	"strconv"
	"strings"
)

// handOverDone: what has handed over does nothing when it is repeated, and a slot that was dropped later is named.
func handOverDone(h *handedOver) {
	h.begin(1)
	h.insert("a", "b")
	h.next(2)
	two := h.shared(2)
	h.known(two, 1)
	h.edit = strings.NewReplacer("handed := ", "PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60); handed := ")
	if err := h.handOver(two, 1, nil); err == nil {
		h.Fatal("the session was not killed")
	}
	h.edit = strings.NewReplacer()
	if names := h.slots(); names != h.p.Slot+"_0_of_0 "+h.p.Slot+"_0_of_1" { // no new daemon can deliver yet
		h.Fatalf("killed after it has handed over: slots %s", names)
	}
	// Slots that have got the names of new ones since: they lack rows, or are those of another database.
	h.insert("c")
	h.exec("SELECT pg_create_logical_replication_slot('" + h.p.Slot + "_0_of_2', 'pgoutput')")
	another := func(do string, slot string) {
		h.Helper()
		must(h, h.server.Exec(h.Context(), "postgres", "SELECT pg_"+do+"_replication_slot("+slot+")"))
	}
	another("create_logical", "'"+h.p.Slot+"_1_of_2', 'pgoutput'")
	h.refused(two, 1, "already exists")
	another("drop", "'"+h.p.Slot+"_1_of_2'")
	h.exec("SET statement_timeout = '30s'")
	h.known(two, 1) // has nothing to wait for
	h.exec("SET statement_timeout = 0")
	again := func() {
		h.Helper()
		if err := h.handOver(two, 1, func() { h.Error("the daemons were to be stopped again") }); err != nil {
			h.Errorf("the hand-over again: %v", err)
		}
	}
	again()
	mistakes(h)
	h.readAll(two)
	h.insert("d", "e", "f")
	again()
	// The names of the old slots are free for slots that have nothing to do with it.
	h.exec("SELECT pg_create_logical_replication_slot('" + h.p.Slot + "_0_of_1', 'pgoutput')")
	another("create_logical", "'"+h.p.Slot+"_0_of_0', 'pgoutput'")
	again()
	h.exec("SELECT pg_drop_replication_slot('" + h.p.Slot + "_0_of_1')")
	another("drop", "'"+h.p.Slot+"_0_of_0'")
	h.delivered("a", "b", "c", "d", "e", "f")
	h.stop(h.p.Slot + "_1_of_2")
	h.await("its slot to be free", func() bool {
		return h.server.Exec(h.Context(), h.p.Slot, "SELECT pg_drop_replication_slot('"+h.p.Slot+"_1_of_2')") == nil
	})
	h.refused(two, 1, "slot "+h.p.Slot+"_1_of_2 was dropped, or the slot that it is copied from was read or is lost, after the hand-over: run outboxcdc recover with the settings of its daemon")
}

// handOverTwice: a session that has lost its client goes on, and another one repeats what it does.
func handOverTwice(h *handedOver) {
	h.begin(1)
	h.next(2)
	two := h.shared(2)
	h.known(two, 1)
	_, err := h.conn.Exec(h.Context(), "SELECT pg_advisory_lock(1)")
	must(h, err)
	waiting := func(n int) bool {
		return h.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == strconv.Itoa(n)
	}
	h.edit = strings.NewReplacer("PERFORM pg_copy_logical_replication_slot(slot_name, name", "PERFORM pg_advisory_lock(1); PERFORM pg_copy_logical_replication_slot(slot_name, name")
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- h.handOver(two, 1, nil) }()
	h.await("the first session to wait", func() bool { return waiting(1) })
	h.edit = strings.NewReplacer()
	go func() { second <- h.handOver(two, 1, nil) }()
	h.await("the second session to wait", func() bool { return waiting(2) || len(second) > 0 })
	_, err = h.conn.Exec(h.Context(), "SELECT pg_advisory_unlock(1)")
	must(h, err)
	must(h, errors.Join(<-first, <-second))
	if names := h.slots(); names != h.p.Slot+"_0_of_2 "+h.p.Slot+"_1_of_2" {
		h.Errorf("slots %s", names)
	}
}

// handOverMoved: the old slot was read after the hand-over, by a daemon that began before it, so nothing has all rows
// that were committed since, and that is said.
func handOverMoved(h *handedOver) {
	h.setup(h.p)
	h.read(&h.p)
	two := h.shared(2)
	beside := two
	beside.Beside, beside.NoSlot = true, true
	h.setup(beside)
	h.known(two, 0)
	h.exec("ALTER TABLE outbox ADD COLUMN lap int") // which is that of a ring only in a ring
	h.refused(two, 0, "lacks column lap integer")
	h.exec("ALTER TABLE shards.outbox ADD COLUMN lap int")
	h.edit = strings.NewReplacer("handed := ", "PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60); handed := ")
	if err := h.handOver(two, 0, nil); err == nil {
		h.Fatal("the session was not killed")
	}
	h.edit = strings.NewReplacer()
	if names := h.slots(); names != h.p.Slot {
		h.Errorf("killed after it has handed over: slots %s", names)
	}
	h.insert("a")
	late := h.p
	late.Publication = "outboxcdc_0_of_2" // a server since 18 lets a daemon read without its publication
	h.read(&late)
	h.refused(two, 0, "a daemon reads slot "+h.p.Slot+": stop it")
	h.stop(h.p.Slot)
	h.await("its slot to be free", func() bool {
		return h.server.Exec(h.Context(), h.p.Slot, "SELECT pg_replication_slot_advance('"+h.p.Slot+"', pg_current_wal_lsn())") == nil
	})
	h.refused(two, 0, "slot "+h.p.Slot+"_0_of_2, "+h.p.Slot+"_1_of_2 was dropped, or the slot that it is copied from was read or is lost, after the hand-over: run outboxcdc recover")
	if left := h.text("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); left != "0" {
		h.Errorf("%s slots", left) // recover creates them
	}
}
