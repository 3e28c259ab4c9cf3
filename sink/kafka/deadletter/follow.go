package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// Group is the consumer group whose offsets say which dead letters of a slot are handled.
func Group(slot string) string { return "outboxcdc-dlq-" + slot }

// Followed is the dead-letter topic that the sessions of a daemon follow, one after the other.
type Followed struct {
	Cluster      *kafka.Cluster
	Topic, Group string
	// LetterOf returns nil for a dead letter that holds no key of the slot.
	LetterOf func(*Letter) *checkpoint.Letter
	Logger   *slog.Logger

	renewEvery, renewAfter time.Duration // other values than the constants, for tests

	mu      sync.Mutex
	id      sarama.Uuid     // of the topic; zero: not known, or brokers that give no ids
	begun   map[int32]int64 // by partition: where it began when the session began to read
	renewAt time.Time       // when the group's offsets are committed again; zero: not known
}

// Follower reads the letters of held keys for a session. It is for one goroutine.
type Follower struct {
	of   *Followed
	open *Topic
	next map[int32]int64 // by partition: the offset to read next
	last map[int32]marks
	// failed: the last Read has failed, perhaps because of the client. The next one opens another.
	failed bool
	again  bool // the topic was created again

	stop     context.CancelFunc
	renewals sync.WaitGroup
}

// marks are what Kafka says about a partition.
type marks struct {
	recorded handled // by the commands
	first    int64
}

// Open connects. Until Close, the group's offsets are renewed: see renewEvery.
func (f *Followed) Open(ctx context.Context) (*Follower, error) {
	t, err := connect(ctx, f.Cluster, f.Topic, f.Group)
	if err != nil {
		return nil, err
	}
	r := &Follower{of: f, open: t, next: map[int32]int64{}}
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.renewals.Go(func() { f.renewals(ctx) })
	return r, nil
}

// Read reads which letters are handled, and then calls read with the letters that were stored since the last call; the
// first call begins at the oldest one that is open. The error is [checkpoint.ErrLettersAgain] once for each time that
// the topic was created again: the next Follower reads the new one. The result is nil if it is that of the last call.
// The call after an error goes on behind the letters that were read.
func (f *Follower) Read(ctx context.Context, read func(l *checkpoint.Letter, handled bool)) (_ *checkpoint.LetterMarks, err error) {
	if f.again {
		return nil, f.createdAgain()
	}
	if f.failed {
		t, err := connect(ctx, f.of.Cluster, f.of.Topic, f.of.Group)
		if err != nil {
			return nil, err
		}
		f.open.Close()
		f.open = t
	}
	defer func() { f.failed = err != nil }()
	if err := f.look(ctx); err != nil {
		return nil, err
	}
	if f.last == nil {
		f.begin()
	}
	now := map[int32]marks{}
	for i := range f.open.parts {
		p := &f.open.parts[i]
		if next := f.next[p.id]; p.end < next {
			if f.open.id == (sarama.Uuid{}) { // the brokers give no ids
				return nil, f.createdAgain()
			}
			return nil, fmt.Errorf("partition %d of topic %s ends at offset %d, although letters before offset %d were read: its leader has lost them, or is an old one",
				p.id, f.of.Topic, p.end, next)
		}
		from, begun := f.next[p.id]
		if !begun {
			from = p.next
		}
		now[p.id] = marks{p.recorded.clone(), p.first}
		err := f.open.read(ctx, p, max(from, p.first), func(l *Letter) error {
			f.next[p.id] = l.Offset + 1
			if letter := f.of.LetterOf(l); letter != nil {
				letter.Place, letter.Time = checkpoint.LetterPlace{Partition: l.Partition, Offset: l.Offset}, l.Time
				read(letter, p.recorded.has(l.Offset))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		f.next[p.id] = p.end
	}
	if maps.EqualFunc(now, f.last, marks.equal) {
		return nil, nil
	}
	f.last = now
	return &checkpoint.LetterMarks{
		Handled: func(at checkpoint.LetterPlace) bool {
			m := now[at.Partition]
			return m.recorded.has(at.Offset)
		},
		First: func(partition int32) int64 { return now[partition].first },
	}, nil
}

// begin notes which letters Kafka has deleted before the session reads any. They hold no key: the renewal records them
// as handled.
func (f *Follower) begin() {
	if n := f.open.Expired(); n > 0 {
		f.of.Logger.Error("Kafka has deleted dead letters that were open: outboxcdc audit finds events that are missing", "topic", f.of.Topic, "count", n)
	}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.of.begun = map[int32]int64{}
	for i := range f.open.parts {
		f.of.begun[f.open.parts[i].id] = f.open.parts[i].first
	}
}

func (m marks) equal(n marks) bool {
	return m.first == n.first && m.recorded.next == n.recorded.next && slices.Equal(m.recorded.spans, n.recorded.spans)
}

// look looks up the topic and its partitions, which may have become more, and what is handled.
func (f *Follower) look(ctx context.Context) error {
	if err := f.open.readState(ctx); err != nil {
		return err
	}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	was, id := f.of.id, f.open.id
	if id == (sarama.Uuid{}) {
		return nil
	}
	if f.of.id = id; was != (sarama.Uuid{}) && was != id {
		return f.createdAgain()
	}
	return nil
}

func (f *Follower) createdAgain() error {
	f.again = true
	return fmt.Errorf("topic %s: %w", f.of.Topic, checkpoint.ErrLettersAgain)
}

// Close cuts the connections.
func (f *Follower) Close() {
	f.stop()
	f.open.Close()
	f.renewals.Wait()
}
