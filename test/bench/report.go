package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// record has the kind of any row of the results.
type record struct {
	Kind string `json:"kind"`
}

// rows are those of one call, by kind.
type rows struct {
	machine machineRow
	loads   []load
	drains  []drainRow
	memory  []memoryRow
	steady  []steadyRow
	first   []firstRow
}

// readRows reads a file of results.
func readRows(path string) (*rows, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r rows
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var k record
		if err := json.Unmarshal(lines.Bytes(), &k); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if err := r.take(k.Kind, lines.Bytes()); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, k.Kind, err)
		}
	}
	return &r, lines.Err()
}

func (r *rows) take(kind string, line []byte) error {
	switch kind {
	case "machine":
		return json.Unmarshal(line, &r.machine)
	case "load":
		err := newOf(&r.loads, line)
		if n := len(r.loads) - 1; err == nil && slices.ContainsFunc(r.loads[:n], func(l load) bool { return l.Name == r.loads[n].Name }) {
			r.loads = r.loads[:n] // the file holds several calls
		}
		return err
	case "drain":
		return newOf(&r.drains, line)
	case "memory":
		return newOf(&r.memory, line)
	case "steady":
		return newOf(&r.steady, line)
	case "first":
		return newOf(&r.first, line)
	case "growth", "link", "writer": // of an earlier benchmark
		return nil
	}
	return fmt.Errorf("unknown kind %q", kind)
}

func newOf[T any](to *[]T, line []byte) error {
	var row T
	if err := json.Unmarshal(line, &row); err != nil {
		return err
	}
	*to = append(*to, row)
	return nil
}

// series are the figures of the runs that count.
type series []float64

func (s series) median() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// text returns the median, and the range if there is one.
func (s series) text(format string) string {
	if len(s) == 0 {
		return "–"
	}
	out := fmt.Sprintf(format, s.median())
	if low, high := fmt.Sprintf(format, slices.Min(s)), fmt.Sprintf(format, slices.Max(s)); low != high {
		out += " (" + low + "–" + high + ")"
	}
	return out
}

// drainFigures returns a figure of the drains of a load by a subject, without void runs.
func (r *rows) drainFigures(load, subject string, figure func(*drainRow) float64) (s series) {
	for i := range r.drains {
		if d := &r.drains[i]; d.Load == load && d.Subject == subject && d.Void == "" {
			s = append(s, figure(d))
		}
	}
	return s
}

func (r *rows) countVoid(load, subject string) (n int, counts counts) {
	for _, d := range r.drains {
		if d.Load == load && d.Subject == subject {
			if d.Void != "" {
				n++
			}
			counts.Lost, counts.Repeated, counts.Disordered = counts.Lost+d.Lost, counts.Repeated+d.Repeated, counts.Disordered+d.Disordered
		}
	}
	return n, counts
}

var (
	rate      = (*drainRow).rate
	client    = func(d *drainRow) float64 { return d.perMillion(d.Client) }
	walsender = func(d *drainRow) float64 { return d.perMillion(d.Walsender) }
	broker    = func(d *drainRow) float64 { return d.perMillion(d.Broker) }
	// busy is how busy the core of the walsender was, in percent. No reader makes it faster than one core.
	busy   = func(d *drainRow) float64 { return d.Walsender / d.Seconds * 100 }
	memory = func(d *drainRow) float64 { return float64(d.PeakRSS) / (1 << 20) }
	allocs = func(d *drainRow) float64 { return d.Allocs }
)

// report prints the tables of a file of results, as Markdown.
func report(path string, w io.Writer) error {
	r, err := readRows(path)
	if err != nil {
		return err
	}
	m := r.machine
	link := "plain text"
	if m.TLS {
		link = "TLS"
	}
	fmt.Fprintf(w, "%s: outboxcdc %s, PostgreSQL %s over %s, Kafka %s, %s, %d cores of %s, Linux %s%s\n", m.Began.UTC().Format("2006-01-02 15:04"), m.Commit,
		m.Postgres, link, m.Kafka, m.Go, m.Cores, m.CPU, m.Kernel, strings.Join(append([]string{""}, m.Settings...), ", "))
	r.drainTable(w)
	r.steadyTable(w)
	r.memoryLine(w)
	r.targets(w)
	return nil
}

func (r *rows) drainTable(w io.Writer) {
	if len(r.drains) == 0 {
		return
	}
	fmt.Fprint(w, "\n### Drain\n\nMedian and range of the runs that count. CPU in seconds per million events.\n\n"+
		"| load | who | events/s | of pg_recvlogical's | CPU | walsender | walsender's core, % | broker | peak RSS, MiB | allocations per event | lost / repeated / out of order | void runs |\n"+
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, l := range r.loads {
		base := r.drainFigures(l.Name, "pg_recvlogical", rate).median()
		for _, s := range allSubjects() {
			speed := r.drainFigures(l.Name, s.Name, rate)
			void, wrong := r.countVoid(l.Name, s.Name)
			if len(speed) == 0 && void == 0 {
				continue
			}
			counted, sent := "–", "–"
			if s.kafka {
				counted, sent = fmt.Sprintf("%d / %d / %d", wrong.Lost, wrong.Repeated, wrong.Disordered), r.drainFigures(l.Name, s.Name, broker).text("%.2f")
			}
			alloc := r.drainFigures(l.Name, s.Name, allocs)
			if s.Name == "pg_recvlogical" {
				alloc = nil
			}
			fmt.Fprintf(w, "| %s: %s | %s | %s | %.2f × | %s | %s | %s | %s | %s | %s | %s | %d |\n", l.Name, l.About, s.Name, speed.text("%.0f"), speed.median()/base,
				r.drainFigures(l.Name, s.Name, client).text("%.2f"), r.drainFigures(l.Name, s.Name, walsender).text("%.2f"),
				r.drainFigures(l.Name, s.Name, busy).text("%.0f"), sent, r.drainFigures(l.Name, s.Name, memory).text("%.0f"),
				alloc.text("%.2f"), counted, void)
		}
	}
}

func (r *rows) paceOf(pace string, figure func(*steadyRow) float64) (s series) {
	for i := range r.steady {
		if p := &r.steady[i]; p.Pace == pace && (p.Other <= steadyOther || pace == "idle") {
			s = append(s, figure(p))
		}
	}
	return s
}

// steadyOther is how many cores other processes may use during a steady load. The benchmark's own writer and reader do
// not count.
const steadyOther = 0.4

func (r *rows) steadyTable(w io.Writer) {
	if len(r.steady) == 0 {
		return
	}
	fmt.Fprint(w, "\n### Steady load\n\n1 KB events. Milliseconds from the server's commit time to the record at an independent reader; cores of 100 %.\n\n"+
		"| rate | p50 | p99 | p99.9 | max | due → visible p99 | visible → confirmed p50 | max | daemon | walsender | broker | peak RSS, MiB |\n"+
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, p := range paces {
		of := func(figure func(*steadyRow) float64, format string) string {
			return r.paceOf(p.Name, figure).text(format)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s | %s %% | %s %% | %s %% | %s |\n", p.Name,
			of(func(s *steadyRow) float64 { return s.Commit.P50 }, "%.1f"), of(func(s *steadyRow) float64 { return s.Commit.P99 }, "%.1f"),
			of(func(s *steadyRow) float64 { return s.Commit.P999 }, "%.1f"), of(func(s *steadyRow) float64 { return s.Commit.Max }, "%.1f"),
			of(func(s *steadyRow) float64 { return s.Due.P99 }, "%.1f"), of(func(s *steadyRow) float64 { return s.Confirm.P50 }, "%.0f"),
			of(func(s *steadyRow) float64 { return s.Confirm.Max }, "%.0f"), of(func(s *steadyRow) float64 { return s.Daemon * 100 }, "%.1f"),
			of(func(s *steadyRow) float64 { return s.Walsender * 100 }, "%.1f"), of(func(s *steadyRow) float64 { return s.Broker * 100 }, "%.1f"),
			of(func(s *steadyRow) float64 { return float64(s.RSS) / (1 << 20) }, "%.0f"))
	}
	fmt.Fprintf(w, "\nIdle: %s %% of a core, %s MiB, %s transactions in its database in %s s. ",
		r.paceOf("idle", func(s *steadyRow) float64 { return s.Daemon * 100 }).text("%.2f"), r.paceOf("idle", func(s *steadyRow) float64 { return float64(s.RSS) / (1 << 20) }).text("%.0f"),
		r.paceOf("idle", func(s *steadyRow) float64 { return float64(s.Queries) }).text("%.0f"), r.paceOf("idle", func(s *steadyRow) float64 { return s.Seconds }).text("%.0f"))
	fmt.Fprintf(w, "Start of the process to its first record at the reader: %s ms.\n", r.firstTimes().text("%.0f"))
}

func (r *rows) firstTimes() (s series) {
	for _, f := range r.first {
		s = append(s, f.Seconds*1000)
	}
	return s
}

func (r *rows) memoryLine(w io.Writer) {
	if n := len(r.memory); n > 2 {
		first, last := r.memoryThird(0), r.memoryThird(2)
		fmt.Fprintf(w, "\nFull drain for %.0f s, %d events: %.0f MiB on average in the first third, %.0f MiB in the last (%.2f ×).\n",
			r.memory[n-1].Seconds, r.memory[n-1].Events, first, last, last/first)
	}
}

// memoryThird returns the average memory in a third of the long drain, in MiB.
func (r *rows) memoryThird(i int) float64 {
	n := len(r.memory)
	part, total := r.memory[n*i/3:n*(i+1)/3], 0.0
	for _, m := range part {
		total += float64(m.RSS) / (1 << 20)
	}
	return total / float64(len(part))
}
