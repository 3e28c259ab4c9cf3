package inbox

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
)

// TestInboxShareGroup: members of a share group decide with Once.
func TestInboxShareGroup(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	roomOn(t, pg, kafka, "kgo", 1).shareOnce()
}

// shareOnce gives a record to another member of a share group while the first one's transaction is open, and once more
// after that: the effect happens once, and the second member waits.
func (r *room) shareOnce() {
	t := r.t
	r.beginShareAtFirst()
	events := r.events(1, 1)
	one, two := r.member(), r.member()

	record := one.take(1)
	tx, err := r.pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if !r.onceShared(tx, record) {
		t.Error("Once does not know that the event is new")
	}
	one.answer(record, kgo.AckRelease) // the broker does that after share.record.lock.duration.ms

	record = two.take(2)
	waiting, err := r.pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = waiting.Rollback(context.Background()) }()
	result := make(chan bool, 1)
	go func() { result <- r.onceShared(waiting, record) }()
	r.awaitBlocked(waiting, tx)
	must(t, tx.Commit(t.Context()))
	if <-result {
		t.Error("the member that has waited handles the event again")
	}
	must(t, waiting.Commit(t.Context()))
	two.answer(record, kgo.AckRelease) // as if it had been killed before it acknowledges

	record = one.take(3)
	must(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		if r.onceShared(tx, record) {
			t.Error("the event is handled again after its transaction")
		}
		return nil
	}))
	one.answer(record, kgo.AckAccept)
	r.checkLedger(idsOf(events)...)
}

// onceShared is the loop of a member: Once, and the effect.
func (r *room) onceShared(tx pgx.Tx, record *kgo.Record) (isNew bool) {
	event, err := inbox.ReadEvent(record.Topic, record.Key, record.Value, func(name string) (string, bool) {
		for _, h := range record.Headers {
			if h.Key == name {
				return string(h.Value), true
			}
		}
		return "", false
	})
	if err == nil {
		store := pgxinbox.Store{Store: r.Store}
		isNew, err = store.Once(r.t.Context(), tx, r.Group, event)
	}
	if err == nil && isNew {
		err = r.ledger(r.t.Context(), tx, ofKgo(record))
	}
	if err != nil {
		r.t.Error(err)
	}
	return isNew
}

// awaitBlocked waits until the session of a transaction waits for that of another one.
func (r *room) awaitBlocked(waiting, holder pgx.Tx) {
	r.t.Helper()
	r.awaitCount(1, `SELECT count(*) FROM unnest(pg_blocking_pids($1)) pid WHERE pid = $2`,
		waiting.Conn().PgConn().PID(), holder.Conn().PgConn().PID())
}

// beginShareAtFirst lets the share group begin with the first record; by default it begins at the end.
func (r *room) beginShareAtFirst() {
	r.t.Helper()
	client := r.client()
	defer client.Close()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, r.Group
	setting := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	setting.Name, setting.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
	resource.Configs = append(resource.Configs, setting)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = append(req.Resources, resource)
	res, err := req.RequestWith(r.t.Context(), client)
	must(r.t, err)
	must(r.t, kerr.ErrorForCode(res.Resources[0].ErrorCode))
}

// shareMember is a member of the room's share group.
type shareMember struct {
	*room
	client *kgo.Client
}

// member begins a member, which fetches a record only when it takes one.
func (r *room) member() *shareMember {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.ShareGroup(r.Group), kgo.ConsumeTopics(r.Topic), kgo.ShareMaxRecordsStrict())
	must(r.t, err)
	r.t.Cleanup(client.Close)
	return &shareMember{r, client}
}

// take waits for a record that is delivered for the n-th time.
func (m *shareMember) take(n int32) *kgo.Record {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		records := m.client.PollFetches(ctx).Records()
		if len(records) == 0 {
			continue
		}
		if got := records[0].DeliveryCount(); got != n {
			m.t.Fatalf("the record is delivered for the %d. time, want the %d.", got, n)
		}
		return records[0]
	}
	m.t.Fatal("no record arrives")
	return nil
}

// answer tells the broker what has become of a record.
func (m *shareMember) answer(record *kgo.Record, status kgo.AckStatus) {
	m.t.Helper()
	record.Ack(status)
	must(m.t, m.client.FlushAcks(m.t.Context()))
}
