package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// followTest follows the topic dead of a fake Kafka. A letter holds the key of its record, unless that begins with "-".
type followTest struct {
	*testing.T
	f        *fake
	followed Followed
	log      strings.Builder
	*Follower
	marks *checkpoint.LetterMarks // the last ones
}

func newFollowTest(t *testing.T, partitions int) *followTest {
	x := &followTest{T: t, f: newFake(t)}
	x.f.createTopic(t, "dead", partitions, nil)
	x.followed = Followed{
		Cluster: newCluster(t, testConfig(x.f)), Topic: "dead", Group: "care", Logger: slog.New(slog.NewTextHandler(&x.log, nil)),
		LetterOf: func(l *Letter) *checkpoint.Letter {
			if l.Key == nil || l.Key[0] == '-' || !slices.ContainsFunc(l.Headers, func(h router.Header) bool { return h.Name == "held" }) {
				return nil
			}
			return &checkpoint.Letter{HeldKey: checkpoint.KeyOf("t", l.Key)}
		},
	}
	return x
}

func (x *followTest) begin() {
	x.Helper()
	if x.Follower != nil {
		x.Close()
	}
	var err error
	x.Follower, err = x.followed.Open(x.Context())
	must(x.T, err)
	x.Cleanup(x.Close)
}

func (x *followTest) letters(partition int32, keys ...string) {
	x.Helper()
	var all []*kgo.Record
	for _, k := range keys {
		all = append(all, &kgo.Record{Topic: "dead", Partition: partition, Key: []byte(k), Headers: []kgo.RecordHeader{{Key: "held"}}})
	}
	x.f.produce(x.T, all...)
}

// read is Read. The letters are "partition:offset key", with a ! after those that are handled.
func (x *followTest) read() (got []string, err error) {
	marks, err := x.Read(x.Context(), func(l *checkpoint.Letter, handled bool) {
		if l.Time.IsZero() {
			x.Errorf("letter %v has no time", l.Place)
		}
		s := fmt.Sprintf("%d:%d %s", l.Place.Partition, l.Place.Offset, l.Key)
		if handled {
			s += "!"
		}
		got = append(got, s)
	})
	if marks != nil {
		x.marks = marks
	}
	return got, err
}

func (x *followTest) want(want ...string) {
	x.Helper()
	got, err := x.read()
	must(x.T, err)
	if !slices.Equal(got, want) {
		x.Errorf("read %q, want %q", got, want)
	}
}

func (x *followTest) wantHandled(offset int64, want bool) {
	x.Helper()
	if got := x.marks.Handled(checkpoint.LetterPlace{Partition: 0, Offset: offset}); got != want {
		x.Errorf("letter %d is handled: %v", offset, got)
	}
}

// TestFollow: each letter is read once, from the first open one on, and marks change when a command records some.
func TestFollow(t *testing.T) {
	x := newFollowTest(t, 1)
	x.letters(0, "a", "-other", "b", "c", "d")
	x.begin()
	x.want("0:0 a", "0:2 b", "0:3 c", "0:4 d")
	x.wantHandled(0, false)
	before := x.marks
	x.letters(0, "e")
	x.want("0:5 e")
	if x.marks != before {
		t.Error("other marks, and no command has recorded anything")
	}
	markHandled(t, openLetters(t, x.followed.Cluster), "0:0", "0:3")
	x.want()
	for offset, want := range []bool{true, false, false, true, false} { // 1 is no letter that a command has handled
		x.wantHandled(int64(offset), want)
	}
	x.begin() // the next session
	x.want("0:2 b", "0:3 c!", "0:4 d", "0:5 e")
	markHandled(t, openLetters(t, x.followed.Cluster), "0:2", "0:4", "0:5")
	x.want()
	x.wantHandled(5, true)
	x.begin()
	x.want("0:2 b!", "0:3 c!", "0:4 d!", "0:5 e!") // the record of another slot before them is not handled
}

// TestFollowPartitions: partitions that are added are read.
func TestFollowPartitions(t *testing.T) {
	x := newFollowTest(t, 1)
	x.letters(0, "a")
	x.begin()
	x.want("0:0 a")
	must(t, kafkatest.AddPartitions(t.Context(), x.f.ListenAddrs(), "dead", 3))
	x.letters(2, "b")
	x.letters(0, "c")
	x.want("0:1 c", "2:0 b")
}

// TestFollowDeleted: letters that Kafka deletes are not handled. An open one is missed.
func TestFollowDeleted(t *testing.T) {
	x := newFollowTest(t, 1)
	x.letters(0, "a", "b", "c", "d")
	x.begin()
	x.want("0:0 a", "0:1 b", "0:2 c", "0:3 d")
	markHandled(t, openLetters(t, x.followed.Cluster), "0:0")
	x.f.deleteRecords(t, "dead", 0, 2)
	x.want()
	x.wantHandled(0, true)
	x.wantHandled(1, false)
	if got := x.marks.First(0); got != 2 {
		t.Errorf("the partition begins at %d", got)
	}
	if x.log.Len() > 0 {
		t.Error(x.log.String())
	}
	x.begin()
	x.want("0:2 c", "0:3 d")
	if !strings.Contains(x.log.String(), "deleted dead letters that were open") || !strings.Contains(x.log.String(), "count=1") {
		t.Error(x.log.String())
	}
}

// TestFollowCreatedAgain: the letters of a topic that was created again are not those of the topic before. One session
// of the process says so, and the next reads them.
func TestFollowCreatedAgain(t *testing.T) {
	x := newFollowTest(t, 1)
	x.letters(0, "a")
	x.begin()
	x.want("0:0 a")
	must(t, kafkatest.DeleteTopic(t.Context(), x.f.ListenAddrs(), "dead"))
	if _, err := x.read(); err == nil || errors.Is(err, checkpoint.ErrLettersAgain) { // one broker may not know it
		t.Errorf("the topic was deleted: %v", err)
	}
	x.f.createTopic(t, "dead", 1, nil)
	x.letters(0, "b", "c")
	x.begin()
	for range 2 {
		if got, err := x.read(); !errors.Is(err, checkpoint.ErrLettersAgain) || len(got) > 0 {
			t.Errorf("%q, %v", got, err)
		}
	}
	x.begin()
	x.want("0:0 b", "0:1 c")
}

// TestFollowEnds: the end of the context ends a reading that waits for Kafka.
func TestFollowEnds(t *testing.T) {
	x := newFollowTest(t, 1)
	x.begin()
	x.want()
	ctx, cancel := context.WithCancel(t.Context())
	x.f.ControlKey(int16(kmsg.OffsetFetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		cancel()
		<-t.Context().Done()
		return nil, nil, false
	})
	if _, err := x.Read(ctx, func(*checkpoint.Letter, bool) {}); err == nil {
		t.Error("no error")
	}
}

// TestFollowRenews: the group's offsets are committed again and again, as the commands have left them, and not while a
// command holds the group.
func TestFollowRenews(t *testing.T) {
	x := newFollowTest(t, 2)
	x.followed.renewAfter, x.followed.renewEvery = 20*time.Millisecond, 20*time.Millisecond
	commits := make(chan *kmsg.OffsetCommitRequest, 1000)
	x.f.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		x.f.KeepControl()
		commits <- r.(*kmsg.OffsetCommitRequest)
		return nil, nil, false
	})
	x.letters(0, "a", "b", "c")
	x.letters(1, "d")
	x.begin()
	x.want("0:0 a", "0:1 b", "0:2 c", "1:0 d")
	commit := func() *kmsg.OffsetCommitRequest {
		t.Helper()
		select {
		case c := <-commits:
			if c.MemberID == "" {
				t.Error("committed without the group: a command may have committed since the offsets were read")
			}
			return c
		case <-within(t, 20*time.Second).Done():
			t.Fatal("the offsets are not committed")
			return nil
		}
	}
	offsets := func(r *kmsg.OffsetCommitRequest) map[int32]string {
		all := map[int32]string{}
		for _, part := range r.Topics[0].Partitions {
			all[part.Partition] = fmt.Sprint(part.Offset, *part.Metadata)
		}
		return all
	}
	var by *Topic
	hold := func() {
		for by = openLetters(t, x.followed.Cluster); by.Hold(t.Context()) != nil; { // the daemon renews
			by.Close()
			by = openLetters(t, x.followed.Cluster)
		}
	}
	hold()
	if len(commits) > 0 {
		t.Error("the offsets of a group without any were committed")
	}
	must(t, by.Read(t.Context(), false, func(l *Letter) error {
		if string(l.Key) == "b" {
			by.MarkHandled(l)
		}
		return nil
	}))
	must(t, by.Commit())
	by.Close()
	first := offsets(commit())
	for range 2 {
		if again := offsets(commit()); !maps.Equal(again, first) {
			t.Errorf("renewed %v, committed was %v", again, first)
		}
	}
	hold()
	for len(commits) > 0 {
		<-commits
	}
	must(t, by.Commit())
	if mine := commit(); mine.MemberID != by.hold.member || len(commits) > 0 {
		t.Errorf("%d commits beside a command", len(commits))
	}
	by.Close()
	commit()
	wantPlaces(t, openLetters(t, x.followed.Cluster), false, "0:0", "0:1!", "0:2", "1:0")
	if strings.Contains(x.log.String(), "not renewed") {
		t.Error(x.log.String())
	}
}

// TestFollowRenewsGone: an open letter that Kafka has deleted is not recorded as handled.
func TestFollowRenewsGone(t *testing.T) {
	x := newFollowTest(t, 2)
	x.letters(0, "a", "b", "c", "d")
	x.letters(1, "e")
	x.begin()
	x.want("0:0 a", "0:1 b", "0:2 c", "0:3 d", "1:0 e")
	markHandled(t, openLetters(t, x.followed.Cluster), "0:0", "0:2")
	x.f.deleteRecords(t, "dead", 0, 2)
	must(t, x.followed.renew(t.Context()))
	x.want()
	x.wantHandled(0, true)
	x.wantHandled(1, false)
	x.wantHandled(2, true)
	x.begin()
	x.want("0:3 d", "1:0 e")
	if !strings.Contains(x.log.String(), "count=1") {
		t.Error(x.log.String())
	}
	must(t, x.followed.renew(t.Context())) // what was said is not said again
	x.log.Reset()
	x.begin()
	x.want("0:3 d", "1:0 e")
	if x.log.Len() > 0 {
		t.Error(x.log.String())
	}
}

// TestFollowCommandGone: a command that begins after Kafka has deleted an open letter does not record it as handled,
// unless it forgets it.
func TestFollowCommandGone(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		x := newFollowTest(t, 1)
		x.letters(0, "a", "b", "c", "d", "e")
		x.begin()
		x.want("0:0 a", "0:1 b", "0:2 c", "0:3 d", "0:4 e")
		markHandled(t, openLetters(t, x.followed.Cluster), "0:0")
		x.f.deleteRecords(t, "dead", 0, 2)
		l := openLetters(t, x.followed.Cluster)
		mustHold(t, l)
		if forgets {
			l.Forget(func(int32) int64 { return 100 })
		}
		must(t, l.Read(t.Context(), false, func(x *Letter) error {
			if x.Offset == 3 {
				l.MarkHandled(x)
			}
			return nil
		}))
		must(t, l.Commit())
		l.Close()
		x.want()
		for offset, want := range []bool{true, forgets, false, true, false} {
			x.wantHandled(int64(offset), want)
		}
		if got := x.marks.First(0); got != 2 {
			t.Errorf("the partition begins at %d", got)
		}
		wantPlaces(t, openLetters(t, x.followed.Cluster), false, "0:2", "0:3!", "0:4")
	}
}

// TestFollowAgain: a reading that fails is begun again behind the letters that were read, with other connections.
func TestFollowAgain(t *testing.T) {
	x := newFollowTest(t, 2)
	x.letters(0, "a")
	x.begin()
	x.want("0:0 a")
	x.letters(0, "b", "c")
	x.letters(1, "d")
	markHandled(t, openLetters(t, x.followed.Cluster), "0:0")
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	_, err := x.Read(ctx, func(l *checkpoint.Letter, _ bool) {
		got = append(got, l.Key)
		cancel()
	})
	if err == nil || !slices.Equal(got, []string{"b"}) {
		t.Fatalf("%q, %v", got, err)
	}
	x.want("0:2 c", "1:0 d")
	x.wantHandled(0, true)
	x.wantHandled(1, false)
	x.want()
}
