package checkpoint

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

var update = flag.Bool("update", false, "write the answers in testdata/rule as they are now")

// TestRule runs the conversations in testdata/rule/*.txt with the confirm rule. A line is a fact. The indented lines
// after it are the actions that the rule then requests, each with its time since the start. A status update is
// reported as sent at once. The slot starts at 0/100.
//
//	begin 200 2      a transaction with commit LSN 0/200 begins, and two events of it are sent
//	commit 210       its Commit arrives: its end LSN is 0/210
//	ack 0            Kafka acknowledges event 0, counted over the whole conversation
//	keepalive 300    the server's WAL ends at 0/300
//	passed           the catalog check finds nothing changed
//	undecided        the catalog check has no result
//	records          Kafka has the first position record: from now on records are required
//	stored           Kafka has the position record
//	asked            the server asks for a status update
//	freeze           an error has ended the session
//	wait 2s          time passes
func TestRule(t *testing.T) {
	files, err := filepath.Glob("testdata/rule/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			must(t, err)
			got := converse(t, string(want))
			if *update {
				must(t, os.WriteFile(file, got, 0o644))
			} else if !bytes.Equal(got, want) {
				t.Errorf("%s says:\n%s\nwant:\n%s", file, got, want)
			}
		})
	}
}

// conversation is a rule, with the facts and the actions so far.
type conversation struct {
	rule    *Rule
	tracker *Tracker
	began   time.Time
	now     time.Time
	out     bytes.Buffer
}

func converse(t *testing.T, script string) []byte {
	now := time.Unix(1_000_000, 0)
	c := &conversation{tracker: NewTracker(0x100), began: now, now: now}
	c.rule = NewRule(0x100, now, Pacing{Status: time.Second, Silence: 5 * time.Second, Check: 1250 * time.Millisecond}, c.tracker, &Resume{})
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "\t") {
			continue // an action
		}
		c.out.WriteString(line + "\n")
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			c.fact(t, words)
			c.act()
		}
	}
	return c.out.Bytes()
}

// fact reports one line to the rule.
func (c *conversation) fact(t *testing.T, words []string) {
	t.Helper()
	lsn := func() pglogrepl.LSN {
		n, err := strconv.ParseUint(words[1], 16, 64)
		if err != nil {
			t.Fatal(words, err)
		}
		return pglogrepl.LSN(n)
	}
	number := func(i int) (n int) {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			t.Fatal(words, err)
		}
		return n
	}
	switch words[0] {
	case "begin":
		c.tracker.Begin(TxID{CommitLSN: lsn()}, false)
		for range number(2) {
			c.tracker.Add(1, 0)
		}
	case "commit":
		c.rule.Received(lsn())
		c.tracker.Commit(lsn())
	case "ack":
		c.tracker.Ack([]uint64{uint64(number(1))}, nil)
	case "keepalive":
		c.rule.Received(lsn())
		c.tracker.Keepalive(lsn())
	case "passed":
		c.rule.CheckPassed()
	case "undecided":
		c.rule.CheckUndecided()
	case "records":
		c.rule.Save(c.rule.Confirmed())
		c.rule.Stored()
		c.rule.RequireRecords()
	case "stored":
		c.rule.Stored()
	case "asked":
		c.rule.RequestReply()
	case "freeze":
		c.rule.Freeze()
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			t.Fatal(words, err)
		}
		for end := c.now.Add(d); c.now.Before(end); {
			if wake := c.rule.Wake(c.now); wake.After(c.now) {
				c.now = earlier(wake, end)
			} else {
				t.Fatalf("%s: the rule wants to be called again at once", c.now.Sub(c.began))
			}
			c.act()
		}
	default:
		t.Fatalf("what is %q?", words)
	}
}

// act runs the actions that the rule requests.
func (c *conversation) act() {
	say := func(format string, args ...any) {
		fmt.Fprintf(&c.out, "\t%s: %s\n", c.now.Sub(c.began), fmt.Sprintf(format, args...))
	}
	do := c.rule.Next(c.now)
	if do.Check {
		say("check the catalogs")
	}
	if do.Record != 0 {
		say("store a record that allows %s", do.Record)
	}
	if do.Status {
		safe := c.rule.Safe()
		say("send status %s", safe)
		c.rule.Sent(c.now, safe)
	}
}
