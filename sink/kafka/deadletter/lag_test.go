package deadletter

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// lag has the leader of the topic dead say, so many times, that its first partition ends at an offset: as one that has
// fallen behind does. It begins at 0.
func (f *fake) lag(end int64, times int) {
	f.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if times == 0 {
			return nil, nil, false
		}
		req := r.(*kmsg.ListOffsetsRequest)
		res := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, topic := range req.Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = topic.Topic
			for _, part := range topic.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition, rp.Offset, rp.Timestamp = part.Partition, 0, 1
				if part.Timestamp == -1 {
					rp.Offset = end
					times--
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			res.Topics = append(res.Topics, rt)
		}
		return res, nil, true
	})
}

// TestLeaderBehind: while a leader says that the topic ends before letters that are handled, or were read, they stay
// handled, and the topic is not taken for one that was created again.
func TestLeaderBehind(t *testing.T) {
	x := newFollowTest(t, 1)
	x.letters(0, "a", "b", "c", "d", "e", "f")
	markHandled(t, openLetters(t, x.followed.Cluster), "0:0", "0:1", "0:2", "0:3", "0:4")
	x.f.lag(2, 3)
	markHandled(t, openLetters(t, x.followed.Cluster)) // it commits what it has read
	wantPlaces(t, openLetters(t, x.followed.Cluster), false, "0:5")

	x.begin()
	x.want("0:5 f")
	x.letters(0, "g")
	x.want("0:6 g")
	x.f.lag(6, 1)
	if _, err := x.read(); err == nil || errors.Is(err, checkpoint.ErrLettersAgain) || !strings.Contains(err.Error(), "letters before offset 7 were read") {
		t.Errorf("read from a leader that is behind: %v", err)
	}
	x.letters(0, "h")
	x.want("0:7 h")
}

// TestTopicRecreated: handled letters of a topic that was created again with fewer letters do not count.
func TestTopicRecreated(t *testing.T) {
	x := newFollowTest(t, 1)
	x.letters(0, "a", "b", "c")
	markHandled(t, openLetters(t, x.followed.Cluster), "0:0", "0:1", "0:2")
	must(t, kafkatest.DeleteTopic(t.Context(), x.f.ListenAddrs(), "dead"))
	x.f.createTopic(t, "dead", 1, nil)
	x.letters(0, "d")
	wantPlaces(t, openLetters(t, x.followed.Cluster), false, "0:0")
}
