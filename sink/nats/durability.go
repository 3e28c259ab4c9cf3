package natssink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// streamConfig has the settings of a stream that say what an acknowledgement means.
type streamConfig struct {
	Storage    string        `json:"storage"`
	Replicas   int           `json:"num_replicas"`
	Window     time.Duration `json:"duplicate_window"`
	Retention  string        `json:"retention"`
	Discard    string        `json:"discard"`
	PerSubject bool          `json:"discard_new_per_subject"` // discard is meant for max_msgs_per_subject too
	Mirror     any           `json:"mirror"`
	MaxMsgs    int64         `json:"max_msgs"`
	MaxBytes   int64         `json:"max_bytes"`
	MaxSubject int64         `json:"max_msgs_per_subject"`
	MaxAge     time.Duration `json:"max_age"`
	NoAck      bool          `json:"no_ack"`
	Sealed     bool          `json:"sealed"`
	Persist    string        `json:"persist_mode"`
}

// Durability reads what an acknowledgement of the stream means at present, and by what an acknowledged event can be
// lost. What cannot be read is among the risks, because nothing is known about it.
func (r *Receiver) Durability(ctx context.Context) (means string, risks []string, err error) {
	t, err := r.Reach(ctx)
	if err != nil {
		return "", nil, err
	}
	defer t.Close()
	c := t.link.Current()
	subject := "$JS.API.STREAM.INFO." + r.cfg.Stream
	a, err := c.ask(ctx, subject)
	var refusal *apiError
	switch {
	case err == nil && a.Config != nil:
		means, risks = ofStream(a.Config)
		return means, risks, nil
	case errors.As(err, &refusal) && refusal.Code == codeStreamNotFound:
		return "nothing yet", []string{fmt.Sprintf("it has no stream %s (receiver.stream), so events wait until there is one", r.cfg.Stream)}, nil
	case errors.Is(err, nats.ErrNoResponders):
		return "nothing yet", []string{"JetStream is not enabled for the daemon's account, or has no leader now, so events wait"}, nil
	case err == nil:
		err = errAnswer
	}
	f := t.failure(fmt.Sprintf("read the stream %s of NATS at %s", r.cfg.Stream, t.hosts), c, subject, err)
	if f.Meaning == lane.Denied {
		return "unknown", []string{"the stream could not be read, so whether an acknowledged event can be lost is not known; let the user publish to " + subject}, nil
	}
	return "", nil, f
}

// ofStream says what the settings of a stream mean.
func ofStream(s *streamConfig) (means string, risks []string) {
	risk := func(is bool, format string, args ...any) {
		if is {
			risks = append(risks, fmt.Sprintf(format, args...))
		}
	}
	where := "in the file of the stream, which its server may not have synced to the disk yet"
	if s.Storage == "memory" {
		where = "in memory"
	}
	means = fmt.Sprintf("the event is %s, on one server", where)
	if s.Replicas > 1 {
		means = fmt.Sprintf("the event is %s, on %d of %d servers", where, s.Replicas/2+1, s.Replicas)
	}
	means += fmt.Sprintf("; a repeat within %s is not stored again (duplicate_window)", s.Window)
	file := s.Storage != "memory"
	risk(s.NoAck, "the stream acknowledges nothing (no_ack), so no event is ever delivered; set it to false")
	risk(s.Sealed, "the stream is sealed, so it takes no event")
	risk(s.Mirror != nil, "the stream is a mirror, so it takes no event")
	risk(!file && s.Replicas < 2, "a restart of the server loses all acknowledged events (storage memory)")
	risk(!file && s.Replicas > 1, "a restart of all its servers loses all acknowledged events (storage memory)")
	risk(file && s.Replicas < 2, "a crash of its machine loses what was not synced, by default the last two minutes; whether sync_interval of the server is always, which loses none, a client cannot read")
	risk(file && s.Replicas > 1, "a crash of several of its machines at once loses what was not synced, by default the last two minutes; whether sync_interval of the servers is always, which loses none, a client cannot read")
	risk(s.Persist == "async", "an event is acknowledged before it is written (persist_mode async)")
	risk(s.Discard != "new" && (s.MaxMsgs > 0 || s.MaxBytes > 0),
		"at its limit it drops the oldest events, read or not (max_msgs %d, max_bytes %d; discard new lets events wait)", s.MaxMsgs, s.MaxBytes)
	risk(s.MaxSubject > 0 && (s.Discard != "new" || !s.PerSubject),
		"at its limit it drops the oldest events of a subject, read or not (max_msgs_per_subject %d; discard new with discard_new_per_subject lets events wait)", s.MaxSubject)
	risk(s.MaxAge > 0, "it drops an event after %s, read or not (max_age)", s.MaxAge)
	risk(s.Retention == "interest", "it drops an event at once if there is no consumer for its subject (retention interest)")
	return means, risks
}
