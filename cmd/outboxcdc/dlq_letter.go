package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxcdc/outboxcdc/kafka/deadletter"
	"github.com/outboxcdc/outboxcdc/relay"
)

// letter is a dead letter with what its headers say.
type letter struct {
	*deadletter.Letter
	id, position, cause, message string
	topic                        string // the original topic; "": it is not known
	truncated                    string // how long its value was, if that was cut
	slot                         string // "": from before letters said so
}

// openLetter reads the headers. An event may have brought some of these names itself where the router did not find that: the
// last is the daemon's.
func openLetter(raw *deadletter.Letter) *letter {
	l := &letter{Letter: raw}
	for _, h := range raw.Headers {
		value := string(h.Value)
		switch h.Name {
		case headerID:
			l.id = value
		case headerPosition:
			l.position = value
		case relay.HeaderError:
			l.cause = value
		case relay.HeaderMessage:
			l.message = value
		case relay.HeaderTopic:
			l.topic = value
		case relay.HeaderTruncated:
			l.truncated = value
		case relay.HeaderSlot:
			l.slot = value
		}
	}
	return l
}

// place is where the letter lies: partition:offset.
func (l *letter) place() string { return fmt.Sprintf("%d:%d", l.Partition, l.Offset) }

// choice says which letters are meant: those that any of it fits.
type choice struct {
	all                 bool
	ids, causes, places []string
	met                 map[string]bool
}

// read checks the flags.
func (c *choice) read(changes bool) error {
	some := len(c.ids)+len(c.causes)+len(c.places) > 0
	switch {
	case changes && !c.all && !some:
		return fmt.Errorf("say which dead letters: --id, --cause, --at, or --all for every open one (dlq list shows them)")
	case changes && c.all && some:
		return fmt.Errorf("--all selects every open dead letter: remove --id, --cause and --at")
	}
	for _, at := range c.places {
		partition, offset, ok := strings.Cut(at, ":")
		_, err := strconv.ParseInt(partition, 10, 32)
		_, err2 := strconv.ParseInt(offset, 10, 64)
		if !ok || err != nil || err2 != nil {
			return fmt.Errorf("--at %s: write partition:offset, such as 3:17", at)
		}
	}
	c.met = map[string]bool{}
	return nil
}

func (c *choice) has(l *letter) bool {
	fits := len(c.ids)+len(c.causes)+len(c.places) == 0
	for _, f := range []struct {
		flag, value string
		list        []string
	}{{"id", l.id, c.ids}, {"cause", l.cause, c.causes}, {"at", l.place(), c.places}} {
		if slices.Contains(f.list, f.value) {
			fits, c.met[f.flag+" "+f.value] = true, true
		}
	}
	return fits
}

// unmet are ids, causes and places of which there was no letter.
func (c *choice) unmet() (all []string) {
	for flag, list := range map[string][]string{"id": c.ids, "cause": c.causes, "at": c.places} {
		for _, value := range list {
			if !c.met[flag+" "+value] {
				all = append(all, "--"+flag+" "+value)
			}
		}
	}
	slices.Sort(all)
	return all
}

func (d *dlq) show(l *letter, o outcome) error {
	b := d.line(l, o)
	if d.output == "json" {
		var err error
		if b, err = d.json(l, o); err != nil {
			return err
		}
	}
	return written(d.out.Write(b))
}

// line is a letter for people.
func (d *dlq) line(l *letter, o outcome) []byte {
	var t line
	t.word(l.place())
	switch {
	case o.problem != "":
		t.word("NOT " + strings.ToUpper(d.verb))
		t.pair("because", []byte(o.problem))
	case o.word != "":
		t.word(o.word)
	case l.Handled:
		t.word("(dealt with)")
	}
	t.word(l.Time.UTC().Format(timeLayout))
	for _, p := range []struct{ name, value string }{
		{"id", l.id}, {"cause", l.cause}, {"topic", l.topic}, {"message", l.message}, {"position", l.position}, {"cut_from", l.truncated},
	} {
		if p.value != "" {
			t.pair(p.name, []byte(p.value))
		}
	}
	t.record(l.Key, l.Value, l.Headers, d.payload)
	return t.end()
}

// letterJSON is a letter for machines.
type letterJSON struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Time      string `json:"time"`
	ID        string `json:"id"`
	Cause     string `json:"cause"`
	Message   string `json:"message"`
	Topic     string `json:"topic"` // the original topic; "": it is not known
	Position  string `json:"position"`
	CutFrom   string `json:"cut_from,omitempty"` // bytes of the value before it was cut
	Open      bool   `json:"open"`
	RetriedTo string `json:"retried_to,omitempty"` // the topic; with --dry-run: where it would go
	Problem   string `json:"problem,omitempty"`    // why it stays open
	recordJSON
}

func (d *dlq) json(l *letter, o outcome) ([]byte, error) {
	return jsonLine(letterJSON{
		Partition: l.Partition, Offset: l.Offset, Time: l.Time.UTC().Format(timeLayout), ID: l.id, Cause: l.cause, Message: l.message,
		Topic: l.topic, Position: l.position, CutFrom: l.truncated, Open: !l.Handled && !o.dealt, RetriedTo: o.to, Problem: o.problem,
		recordJSON: newRecordJSON(l.Key, l.Value, l.Headers, d.payload),
	})
}
