package riverinbox_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/outboxcdc/outboxcdc/inbox/riverinbox"
)

type plain struct {
	N int `json:"n"`
}

func (plain) Kind() string { return "plain" }

type urgent struct{ plain }

func (urgent) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: "urgent", MaxAttempts: 3, UniqueOpts: river.UniqueOpts{ByQueue: true}}
}

// The job keeps its own options, but it is unique by the event, whatever state it is in.
func TestInsertOpts(t *testing.T) {
	for _, args := range []river.JobArgsWithInsertOpts{riverinbox.Args[plain]{}, riverinbox.Args[urgent]{}} {
		o := args.InsertOpts()
		if args.(river.JobArgs).Kind() != "plain" || !o.UniqueOpts.ByArgs || o.UniqueOpts.ByQueue || len(o.UniqueOpts.ByState) != len(rivertype.JobStates()) {
			t.Errorf("%T: kind %q, unique by %+v", args, args.(river.JobArgs).Kind(), o.UniqueOpts)
		}
	}
	if o := (riverinbox.Args[urgent]{}).InsertOpts(); o.Queue != "urgent" || o.MaxAttempts != 3 {
		t.Errorf("the options of the job are %+v", o)
	}
}

// A job without an event cannot be inserted: every such job would be the same one.
func TestNoEvent(t *testing.T) {
	for _, args := range []riverinbox.Args[plain]{{}, {Topic: "t"}, {EventID: "e"}} {
		if _, err := json.Marshal(args); err == nil || !strings.Contains(err.Error(), "the header id") {
			t.Errorf("%+v: %v", args, err)
		}
	}
	args := riverinbox.Args[plain]{Topic: "t", EventID: "e", Job: plain{7}}
	text, err := json.Marshal(args)
	if want := `{"topic":"t","event_id":"e","job":{"n":7}}`; err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	var again riverinbox.Args[plain]
	if err := json.Unmarshal(text, &again); err != nil || again != args {
		t.Errorf("%+v, %v; want %+v", again, err, args)
	}
}
