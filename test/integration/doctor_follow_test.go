package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// printedRemedy is a line that doctor prints below a finding.
type printedRemedy struct{ kind, text string } // kind: SQL, shell, setting, or "" for advice

// printedFinding is a finding as doctor prints it.
type printedFinding struct {
	group, level, check, text string
	remedies                  []printedRemedy
}

var (
	findingLine = regexp.MustCompile(`^  (OK|WARN|FAIL|-)\s+(\S+)\s+(.*)$`)
	remedyLine  = regexp.MustCompile(`^\s+-> (?:(SQL|shell|setting): )?(.*)$`)
)

// parseDoctor reads what doctor prints for people.
func parseDoctor(out string) (all []printedFinding) {
	group := ""
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if m := findingLine.FindStringSubmatch(line); m != nil {
			all = append(all, printedFinding{group: group, level: m[1], check: m[2], text: m[3]})
		} else if m := remedyLine.FindStringSubmatch(line); m != nil && len(all) > 0 {
			f := &all[len(all)-1]
			f.remedies = append(f.remedies, printedRemedy{m[1], m[2]})
		} else if line != "" && !strings.HasPrefix(line, " ") {
			group = line
		}
	}
	return all
}

// byHand are the remedies that no machine can follow, by how they begin, with the reason. The test leaves them out,
// so they must be worded so that an operator who follows them loses nothing.
var byHand = map[string]string{
	"inserts wait until it is built":                     "says what the statement before it costs",
	"if this fails, an id was used twice already":        "about a statement that does not fail here",
	"this does not rewrite the table":                    "says what the statement before it costs",
	"rows that exist already":                            "says for which rows the statement is certain",
	"run outboxcdc recover: it creates the slot":         "says what the command of the line before does",
	"run the command again that has not finished":        "says what the command of the line before does",
	"stop the job that deletes rows":                     "about a job of the application",
	"stop the daemon first":                              "the test has stopped it",
	"without a delivery of the rows":                     "an alternative, for rows that are not to be delivered",
	"the slot is older than the publication and cannot":  "says why the slot is dropped",
	"leave outboxcdc unchanged":                          "a change of the settings at a later time; until then nothing changes",
	"or set outbox.table to an existing table":           "asks which table is meant; the case undoes the renaming",
	"start the daemon, or fix what the daemon waits for": "the test starts it at the end",
	"or add a primary key":                               "an alternative",
	"start the standby, or remove it from the setting":   "asks which of the two is wanted; the second one is followed",
	"while the daemon is stopped, over a replication":    "a command of the replication protocol, which changes no position",
	"if the outbox is in that database":                  "an alternative",
	"if it does not deliver the events of the outbox":    "about another program; the case stops it and runs recover",
	"at once: start the daemon, fix the sink, or raise":  "alternatives; the last one is followed",
	"and let the application write the column":           "a change of the application",
	"events that were written meanwhile lack the column": "what to do if the daemon stops at one of them; the test does what the daemon says",
}

// follower of doctor's remedies.
type patient struct {
	*newcomer
	env      []string
	refused  string            // a remedy may fail with this text, and has changed nothing then
	settings map[string]string // what a setting that is printed is as an environment variable
	manually map[string]func() // remedies that are done by hand, by how they begin
	after    func()            // what must not do harm any more, after the remedies
	former   func()            // copies the rows of the table that was replaced, as the text says that names the drop of the slot
	followed map[string]bool   // checks
}

// followDoctor follows the remedies of all findings about outbox, publication, slot and standbys, until there is none
// that fails.
func (p *patient) followDoctor() {
	p.t.Helper()
	for range 5 {
		out, _, _ := p.runBinary(p.env, "doctor")
		failed := false
		for _, f := range parseDoctor(out) {
			if !slices.Contains([]string{"outbox", "publication", "slot", "standbys"}, f.group) || f.level != "FAIL" && (f.level != "WARN" || p.followed[f.check]) {
				continue
			}
			failed = failed || f.level == "FAIL"
			p.followed[f.check] = true
			for _, r := range f.remedies {
				p.follow(f.check, r)
			}
		}
		if !failed {
			return
		}
	}
	out, _, _ := p.runBinary(p.env, "doctor")
	p.t.Fatalf("doctor still fails after\n%s\n\n%s", strings.Join(p.done, "\n"), out)
}

// follow follows one remedy literally.
func (p *patient) follow(check string, r printedRemedy) {
	p.t.Helper()
	for begins, do := range p.manually {
		if strings.HasPrefix(r.text, begins) {
			do()
			p.done = append(p.done, check+": by hand: "+r.text)
			return
		}
	}
	switch r.kind {
	case "SQL":
		p.exec(r.text)
	case "shell":
		p.shell(check, r.text)
	case "setting":
		if strings.HasPrefix(r.text, "outbox: {order: [<columns") { // only for a table that has such columns, and this one has none
			return
		}
		value, ok := p.settings[r.text]
		if !ok {
			p.t.Fatalf("%s: a setting that the test does not know: %s", check, r.text)
		}
		p.env = append(p.env, value)
	default:
		for begins := range byHand {
			if strings.HasPrefix(r.text, begins) {
				return
			}
		}
		p.t.Fatalf("%s: no machine can follow this, and the list of the test does not have it: %s", check, r.text)
	}
	p.done = append(p.done, check+": "+r.kind+": "+r.text)
}

// shell runs a command of a remedy, answers its questions with yes, and follows what it says if it fails.
func (p *patient) shell(check, text string) {
	p.t.Helper()
	var out bytes.Buffer
	run := func() error {
		cmd := exec.CommandContext(testContext(p.t), "sh", "-c", text)
		cmd.Env = append(append(p.outbox.env(), p.env...), "PATH="+p.bin+":"+os.Getenv("PATH"), "PGPASSWORD=postgres")
		cmd.Stdin = strings.NewReader(strings.Repeat("y\n", 10))
		cmd.Stdout, cmd.Stderr = &out, &out
		return cmd.Run()
	}
	err := run()
	if err != nil && strings.Contains(out.String(), advice.DropAndRecover) { // what the command says
		p.dropUnreadable(out.String())
		err = run()
	}
	if err != nil && (p.refused == "" || !strings.Contains(out.String(), p.refused) || !strings.Contains(out.String(), "nothing was changed")) {
		p.t.Fatalf("%s: %s: %v\n%s\nbefore:\n%s", check, text, err, out.String(), strings.Join(p.done, "\n"))
	}
}

// dropUnreadable does what the text says: it drops the slot, after it has copied the rows of a table that was replaced.
func (p *patient) dropUnreadable(text string) {
	p.t.Helper()
	if strings.Contains(text, "copy the rows of the former table") {
		p.former()
	}
	p.exec(`SELECT pg_drop_replication_slot($1)`, p.name)
}

// awaitSetting waits until new sessions have a setting.
func (o *outbox) awaitSetting(name, value string) {
	o.t.Helper()
	await(o.t, patience, name, func() error {
		var now string
		s := session{url: o.admin.url}
		defer s.close()
		if err := s.scan(`SELECT current_setting('`+name+`')`, &now); err != nil || now != value {
			return errors.Join(err, errors.New("it is "+now))
		}
		return nil
	})
}

// An operator who follows doctor's remedies literally loses no event: events wait in the slot, something is damaged,
// and more events are written. Each remedy that doctor prints for people is run as it is printed, until doctor does
// not fail any more. Then the daemon starts, every row arrives, and an audit finds nothing.
func TestDoctorIsFollowed(t *testing.T) {
	t.Parallel()
	for _, d := range damages {
		for _, mode := range []string{"deduplicated", "at_least_once"} {
			t.Run(d.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				followAfter(t, d, mode)
			})
		}
	}
}

func followAfter(t *testing.T, d damage, mode string) {
	major := d.major
	if major == "" {
		major = defaultMajor
	}
	opt := options{}
	if d.settings != nil {
		opt.pg = ownPostgres(t, major, d.settings)
	} else {
		opt.pg = sharedPostgres(t, major)
	}
	o := newOutbox(t, opt)
	p := &patient{
		newcomer: &newcomer{outbox: o, bin: t.TempDir()}, refused: d.refused,
		env: o.deduplicating(fence), settings: map[string]string{}, manually: map[string]func(){}, followed: map[string]bool{},
	}
	if mode == "at_least_once" {
		p.env = []string{atLeastOnce}
	}
	must(t, os.Symlink(testSuite.binary, filepath.Join(p.bin, "outboxcdc")))
	if d.before != nil {
		d.before(o)
	}
	r := o.startStreaming(p.env...)
	o.insert("order", "k", 1, 10)
	o.awaitArrived(patience)
	r.term()
	o.insert("order", "k", 11, 30)
	d.do(t, o, p)
	if !d.quiet {
		o.insert("order", "k", 41, 20)
	}
	p.followDoctor()
	if p.after != nil {
		p.after()
	}
	t.Logf("what was done:\n%s", strings.Join(p.done, "\n"))
	if !p.followed[d.check] {
		t.Errorf("doctor has no finding %s", d.check)
	}
	p.deliver()
	if _, sum := o.audit(p.env, 0); sum.Summary.Rows < 40 || sum.Summary.Unjudged != 0 {
		t.Errorf("%+v", sum.Summary)
	}
}

// deliver starts the daemon, follows what it says if it stops with 79, and waits until every row has arrived.
func (p *patient) deliver() {
	p.t.Helper()
	p.insert("order", "k", 61, 10)
	for range 3 {
		r, ended := p.start(p.env...), false
		r.endExpected = true
		await(p.t, patience, "all rows, or the end of the daemon", func() error {
			if ended = r.proc.Exited(); ended {
				return nil
			}
			if st, err := r.status(); err != nil || st.State != "streaming" {
				return errors.Join(err, errors.New(p.situation()))
			}
			if left := p.outbox.follow.unseenIDs(p.ids()); len(left) > 0 {
				return fmt.Errorf("%d are missing, e.g. %s; %s", len(left), left[0], p.situation())
			}
			return nil
		})
		if !ended {
			r.signal(syscall.SIGTERM)
			is(p.t, "exit code", r.awaitExit(patience), 0)
			return
		}
		exit := r.awaitExit(patience)
		log, err := os.ReadFile(r.log)
		must(p.t, err)
		last := string(log[bytes.LastIndexByte(bytes.TrimSpace(log), '\n')+1:])
		if exit != 79 && exit != 78 || !strings.Contains(last, advice.Recover) {
			p.t.Fatalf("the daemon ended with %d and does not name recover: %s", exit, last)
		}
		p.t.Logf("the daemon ended with %d", exit)
		if strings.Contains(last, advice.DropAndRecover) {
			p.dropUnreadable(last)
		}
		p.shell("daemon", "outboxcdc recover")
	}
	p.t.Fatalf("the daemon stops again and again, although its remedies were followed")
}
