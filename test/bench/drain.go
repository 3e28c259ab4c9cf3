package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// drainRow is one drain.
type drainRow struct {
	Kind    string    `json:"kind"` // "drain"
	Load    string    `json:"load"`
	Subject string    `json:"subject"`
	Round   int       `json:"round"`
	Rows    int       `json:"rows"`
	Began   time.Time `json:"began"`
	usage
	PeakRSS int64   `json:"peak_rss_bytes"`
	Allocs  float64 `json:"allocs_per_event,omitempty"`
	// Warm is events a second over the second half of the rows, after a just-in-time compiler has done its work.
	Warm float64 `json:"second_half_rate,omitempty"`
	counts
	Void string `json:"void,omitempty"` // why the run does not count
}

const (
	// mostOther is how many cores other processes may use during a run.
	mostOther = 0.4
	// tries is how often a disturbed run is repeated.
	tries = 4
	// warmUp is how many events the broker gets before anything is measured, at scale 1; at a smaller scale at least a
	// tenth.
	warmUp = 2_000_000
	// runTimeout bounds a run.
	runTimeout = 10 * time.Minute
)

// drain lets every subject drain every load, in turns.
func (b *bench) drain(ctx context.Context, all []*load) error {
	if err := b.warm(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	for _, l := range all {
		b.say("load %-10s %9d rows, %s", l.Name, l.Rows, l.About)
		if err := l.write(ctx, b.pg); err != nil {
			return err
		}
		if err := b.out.add(loadRow{"load", l}); err != nil {
			return err
		}
		for round := 1; round <= b.roundsOr(3); round++ {
			for i := range subjects {
				s := &subjects[i]
				if !b.isWanted(s) {
					continue
				}
				row, err := b.repeatDisturbed(ctx, l, s, func(row *drainRow) error {
					row.Round = round
					return b.out.add(row)
				})
				if err != nil {
					return fmt.Errorf("load %s, %s: %w", l.Name, s.Name, err)
				}
				b.say("  %-15s %s", s.Name, b.runLine(row))
			}
		}
		if err := b.drop(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// repeatDisturbed repeats a run that other processes disturbed, up to tries times; keep is called for each run.
func (b *bench) repeatDisturbed(ctx context.Context, l *load, s *subject, keep func(*drainRow) error) (row *drainRow, err error) {
	for range tries {
		if row, err = b.drainOnce(ctx, l, s); err == nil {
			err = keep(row)
		}
		if err != nil || !row.disturbed() {
			break
		}
	}
	return row, err
}

// runLine describes a run on the terminal.
func (b *bench) runLine(r *drainRow) string {
	return fmt.Sprintf("%8.0f events/s, CPU-s/M %5.2f walsender %5.2f broker %5.2f, %4d MiB, other %.2f cores %s",
		r.rate(), r.perMillion(r.Client), r.perMillion(r.Walsender), r.perMillion(r.Broker), r.PeakRSS>>20, r.Other, r.Void)
}

// loadRow describes a load in the results.
type loadRow struct {
	Kind string `json:"kind"` // "load"
	*load
}

func (r *drainRow) rate() float64                { return float64(r.Rows) / r.Seconds }
func (r *drainRow) perMillion(s float64) float64 { return s / float64(r.Rows) * 1e6 }
func (r *drainRow) disturbed() bool              { return r.Other > mostOther }

// warm lets the broker's virtual machine compile its code, once in a call.
func (b *bench) warm(ctx context.Context) error {
	if b.warmed {
		return nil
	}
	b.warmed = true
	l := &load{Name: "warm", Rows: int(warmUp*min(1, max(0.1, b.scale))) / 100 * 100, PerTx: 100, Payload: 200, About: "thrown away"}
	l.complete()
	b.say("warming up")
	if err := l.write(ctx, b.pg); err != nil {
		return err
	}
	if _, err := b.drainOnce(ctx, l, &subjects[0]); err != nil {
		return err
	}
	return b.drop(ctx, l)
}

// drop removes the load, which frees its WAL.
func (b *bench) drop(ctx context.Context, l *load) error {
	return b.pg.Exec(ctx, "postgres", `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '`+l.database()+`'`,
		`DROP DATABASE `+l.database()+` WITH (FORCE)`, `CHECKPOINT`)
}

// drainOnce copies the slot and lets one subject read it to the load's end.
func (b *bench) drainOnce(ctx context.Context, l *load, s *subject) (*drainRow, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	b.runs++
	r := &run{load: l, subject: s, name: fmt.Sprintf("run%d", b.runs)}
	r.dir = filepath.Join(b.dir, r.name)
	r.log = filepath.Join(r.dir, "log")
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, b.pg.SuperURL(l.database()))
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2)`, master, r.name); err != nil {
		return nil, err
	}
	topics := l.topics(r.name)
	if s.kafka {
		if err := b.makeTopics(ctx, l, topics); err != nil {
			return nil, err
		}
		defer b.removeTopics(topics)
	}
	if s == &subjects[0] {
		if err := b.makeOwnTopics(ctx, r.name); err != nil {
			return nil, err
		}
		defer b.removeTopics(ownTopics(r.name))
	}
	row, err := b.measure(ctx, conn, r, topics)
	if err != nil {
		if r.proc != nil {
			_ = r.proc.Kill()
		}
		return nil, err
	}
	if s.kafka {
		if row.counts, err = count(ctx, b.kafka.Brokers(), l, topics); err != nil {
			return nil, err
		}
	}
	switch {
	case row.Lost != 0 || row.Repeated != 0 || row.Disordered != 0:
		row.Void = "different from what was written"
	case row.disturbed():
		row.Void = "other processes used the machine"
	}
	_, err = conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, r.name)
	return row, err
}

func (b *bench) makeTopics(ctx context.Context, l *load, topics []string) error {
	for _, t := range topics {
		if err := kafkatest.CreateTopic(ctx, b.kafka.Brokers(), t, l.Partitions, nil); err != nil {
			return err
		}
	}
	return nil
}

// makeOwnTopics creates the position topic and the dead-letter topic of a run, as `outboxcdc setup apply` does.
func (b *bench) makeOwnTopics(ctx context.Context, run string) error {
	return errors.Join(
		kafkatest.CreateTopic(ctx, b.kafka.Brokers(), positions(run), 1, map[string]string{"cleanup.policy": "compact"}),
		kafkatest.CreateTopic(ctx, b.kafka.Brokers(), letters(run), 1, nil))
}

func (b *bench) removeTopics(topics []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, t := range topics {
		if err := kafkatest.DeleteTopic(ctx, b.kafka.Brokers(), t); err != nil {
			b.say("delete topic %s: %v", t, err)
		}
	}
}

// measure measures from the start of the process to the last row: in Kafka, or read.
func (b *bench) measure(ctx context.Context, conn *pgx.Conn, r *run, topics []string) (*drainRow, error) {
	stored, err := openStored(b.kafka.Brokers(), topics, r.load.Partitions)
	if err != nil {
		return nil, err
	}
	defer stored.close()
	if r.subject.kafka { // connects
		if _, err := stored.records(ctx); err != nil {
			return nil, err
		}
	}
	row := &drainRow{Kind: "drain", Load: r.load.Name, Subject: r.subject.Name, Rows: r.load.Rows, Began: time.Now()}
	a := open(b.pg.Pid(), b.kafka.Pid())
	if err := r.subject.start(b, r); err != nil {
		return nil, err
	}
	w := watch(ctx, conn, r)
	row.Warm, err = b.awaitAll(ctx, r, stored)
	client, walsender, peak := w.stop()
	row.usage = a.close(client, walsender)
	row.PeakRSS = peak
	if err != nil {
		return nil, err
	}
	if r.http != "" {
		mallocs, err := r.gauge(ctx, "go_memstats_mallocs_total")
		if err != nil {
			return nil, err
		}
		row.Allocs = mallocs / float64(r.load.Rows)
	}
	if err := r.end(ctx); err != nil {
		return nil, err
	}
	if text, err := os.ReadFile(filepath.Join(r.dir, "result.json")); err == nil {
		var d jobResult
		if err := json.Unmarshal(text, &d); err != nil {
			return nil, err
		}
		row.Allocs = d.Allocs
	}
	return row, nil
}

// awaitAll waits until all rows are in Kafka, or until a subject that ends by itself has ended.
func (b *bench) awaitAll(ctx context.Context, r *run, stored *stored) (secondHalf float64, err error) {
	if !r.subject.stays {
		return 0, r.proc.Wait(ctx)
	}
	var half time.Time
	var then int64
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-r.proc.Done():
			return 0, errors.Join(errors.New("it ended before all was delivered"), r.end(ctx))
		case <-time.After(20 * time.Millisecond):
		}
		total, err := stored.records(ctx)
		if err != nil {
			return 0, err
		}
		if half.IsZero() && total >= int64(r.load.Rows/2) {
			half, then = time.Now(), total
		}
		if total >= int64(r.load.Rows) {
			return float64(total-then) / time.Since(half).Seconds(), nil
		}
	}
}

// watcher samples figures that are gone when a process has ended.
type watcher struct {
	cancel context.CancelFunc
	ended  chan struct{}

	client, walsender time.Duration
	peak              int64
}

func watch(ctx context.Context, conn *pgx.Conn, r *run) *watcher {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		sender := 0
		for ctx.Err() == nil {
			if sender == 0 {
				var pid *int
				if err := conn.QueryRow(context.WithoutCancel(ctx), `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, r.name).Scan(&pid); err == nil && pid != nil {
					sender = *pid
				}
			}
			w.look(r, sender)
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
		w.look(r, sender)
	}()
	return w
}

func (w *watcher) look(r *run, sender int) {
	w.client = max(w.client, cpu(r.proc.Pid()), r.proc.CPUTime())
	w.peak = max(w.peak, peakRSS(r.proc.Pid()))
	if sender != 0 {
		w.walsender = max(w.walsender, fineCPU(sender))
	}
}

// stop ends the sampling and returns the final figures.
func (w *watcher) stop() (client, walsender time.Duration, peak int64) {
	w.cancel()
	<-w.ended
	return w.client, w.walsender, w.peak
}
