package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/sink/kafka/deadletter"
)

// letter is a dead letter with the values of its headers, by their names. If a name occurs twice, the first header
// may be one of the event, and the last one is the daemon's.
type letter struct {
	*deadletter.Letter
	of   map[string]string
	held *checkpoint.Letter // nil: it holds no key
}

func parseLetter(raw *deadletter.Letter) *letter {
	l := &letter{Letter: raw, of: map[string]string{}, held: relay.LetterOf(raw.Key, raw.Headers)}
	for _, h := range raw.Headers {
		l.of[h.Name] = string(h.Value)
	}
	if l.held != nil {
		l.held.Place, l.held.Time = checkpoint.LetterPlace{Partition: raw.Partition, Offset: raw.Offset}, raw.Time
	}
	return l
}

func (l *letter) id() string { return l.of[headerID] }

// topic is the original topic; "": unknown.
func (l *letter) topic() string { return l.of[relay.HeaderTopic] }

// follows is the id of the poison event that holds the key of an event that only follows it.
func (l *letter) follows() string {
	if l.onlyFollows() {
		return l.of[relay.HeaderHeldBy]
	}
	return ""
}

// onlyFollows reports whether the event is a dead letter only because its key was held.
func (l *letter) onlyFollows() bool {
	return l.held != nil && l.of[relay.HeaderError] == string(relay.CauseHeld)
}

// cutFrom is the original length of the value, if the value was cut.
func (l *letter) cutFrom() string { return l.of[relay.HeaderTruncated] }

// place is partition:offset of the dead letter.
func (l *letter) place() string { return fmt.Sprintf("%d:%d", l.Partition, l.Offset) }

// choice selects dead letters by the flags: those that match any of them.
type choice struct {
	all                       bool
	ids, causes, places, keys []string
	matched                   map[string]bool // "flag value"
}

// read validates the flags.
func (c *choice) read(d *dlq) error {
	some := len(c.ids)+len(c.causes)+len(c.places)+len(c.keys) > 0
	switch {
	case d.changes && !c.all && !some:
		return fmt.Errorf("say which dead letters: --id, --cause, --key, --at, or --all for every open one (dlq list shows them)")
	case d.changes && c.all && some:
		return fmt.Errorf("--all selects every open dead letter: remove --id, --cause, --key and --at")
	case d.drops && len(c.keys) > 0 && !d.followers:
		return fmt.Errorf("drop --key drops all letters of the key, also events that only follow: add --with-followers, " +
			"or drop the oldest one by its --id, which sends those behind it")
	}
	for _, at := range c.places {
		partition, offset, ok := strings.Cut(at, ":")
		_, err := strconv.ParseInt(partition, 10, 32)
		_, err2 := strconv.ParseInt(offset, 10, 64)
		if !ok || err != nil || err2 != nil {
			return fmt.Errorf("--at %s: write partition:offset, such as 3:17", at)
		}
	}
	for _, key := range c.keys {
		if topic, _, ok := strings.Cut(key, "/"); !ok || topic == "" {
			return fmt.Errorf("--key %s: write TOPIC/KEY, such as orders/42", key)
		}
	}
	c.matched = map[string]bool{}
	return nil
}

// matches reports whether a dead letter is selected, and whether a flag means this one, and not its whole key.
func (c *choice) matches(l *letter) (ok, named bool) {
	ok = len(c.ids)+len(c.causes)+len(c.places)+len(c.keys) == 0
	for _, f := range []struct {
		flag, value string
		list        []string
		applies     bool
	}{
		{"id", l.id(), c.ids, true},
		{"cause", l.of[relay.HeaderError], c.causes, true},
		{"at", l.place(), c.places, true},
		{"key", l.topic() + "/" + string(l.Key), c.keys, l.held != nil},
	} {
		if f.applies && slices.Contains(f.list, f.value) {
			ok, c.matched[f.flag+" "+f.value] = true, true
			named = named || f.flag != "key"
		}
	}
	return ok, named
}

// unmatched lists the flags that match no dead letter.
func (c *choice) unmatched() (all []string) {
	for flag, list := range map[string][]string{"id": c.ids, "cause": c.causes, "at": c.places, "key": c.keys} {
		for _, value := range list {
			if !c.matched[flag+" "+value] {
				all = append(all, "--"+flag+" "+value)
			}
		}
	}
	slices.Sort(all)
	return all
}

func (d *dlq) show(l *letter, o outcome) error {
	if d.output == "json" {
		return writeJSON(d.out, d.json(l, o))
	}
	return written(d.out.Write(d.line(l, o)))
}

// line is a dead letter for people.
func (d *dlq) line(l *letter, o outcome) []byte {
	var t line
	t.word(l.place())
	switch {
	case o.problem != "":
		t.word("NOT " + strings.ToUpper(d.verb))
		t.pair("because", []byte(o.problem))
	case o.text != "":
		t.word(o.text)
	case l.Handled:
		t.word("(handled)")
	}
	t.word(l.Time.UTC().Format(timeLayout))
	for _, p := range []struct{ name, value string }{
		{"id", l.id()},
		{"cause", l.of[relay.HeaderError]},
		{"topic", l.topic()},
		{"message", l.of[relay.HeaderMessage]},
		{"position", l.of[headerPosition]},
		{"cut_from", l.cutFrom()},
		{"held_by", l.follows()},
	} {
		if p.value != "" {
			t.pair(p.name, []byte(p.value))
		}
	}
	if k := d.holds.of(l); k != nil {
		t.pair("followers", strconv.AppendInt(nil, int64(k.followers), 10))
		t.pair("held_for", []byte(human.Duration(d.now.Sub(l.Time))))
	}
	t.record(l.Key, l.Value, l.Headers, d.payload)
	return t.end()
}

// letterJSON is a dead letter in JSON output.
type letterJSON struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Time      string `json:"time"`
	ID        string `json:"id"`
	Cause     string `json:"cause"`
	Message   string `json:"message"`
	Topic     string `json:"topic"` // the original topic; "": unknown
	Position  string `json:"position"`
	CutFrom   string `json:"cut_from,omitempty"` // bytes of the value before it was cut
	HeldBy    string `json:"held_by,omitempty"`  // the id of the poison event that holds the key; its position, if it has no id
	// Held is of list, at the oldest open letter of a held key.
	Held      *heldJSON `json:"held,omitempty"`
	Open      bool      `json:"open"`
	RetriedTo string    `json:"retried_to,omitempty"` // the topic; with --dry-run: the topic to which the record would be sent
	Problem   string    `json:"problem,omitempty"`    // why the dead letter stays open
	recordJSON
}

type heldJSON struct {
	Followers int     `json:"followers"`
	Seconds   float64 `json:"seconds"` // age of the letter
}

func (d *dlq) json(l *letter, o outcome) letterJSON {
	out := letterJSON{
		Partition: l.Partition, Offset: l.Offset, Time: l.Time.UTC().Format(timeLayout), ID: l.id(), Cause: l.of[relay.HeaderError], Message: l.of[relay.HeaderMessage],
		Topic: l.topic(), Position: l.of[headerPosition], CutFrom: l.cutFrom(), HeldBy: l.of[relay.HeaderHeldBy],
		Open: !l.Handled && !o.handled, RetriedTo: o.to, Problem: o.problem,
		recordJSON: newRecordJSON(l.Key, l.Value, l.Headers, d.payload),
	}
	if k := d.holds.of(l); k != nil {
		out.Held = &heldJSON{Followers: k.followers, Seconds: d.now.Sub(l.Time).Seconds()}
	}
	return out
}
