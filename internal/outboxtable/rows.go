package outboxtable

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// Row is a row of an outbox.
type Row struct {
	// Event is valid until the function returns that it was given to. Its commit LSN, transaction id and ordinal are
	// unknown, which is 0. Its commit time is CreatedAt, or, if that is not known, the time of the snapshot: no row is
	// newer.
	Event decoder.Event
	// CreatedAt is the zero time if the row has none that Kafka can hold: the column does not exist, is not a time, or
	// its value is NULL, infinite, before 1970 or after 2261.
	CreatedAt time.Time
}

const cursor = "outboxcdc_rows"

// A FETCH asks for as many rows as fetchBytes held in the one before. Rows are not kept in memory; the bound is for
// what is still read after fn has returned an error, and for how long one statement runs when fn is slow.
const (
	fetchBytes = 1 << 20
	firstFetch = 64
	maxFetch   = 10_000
)

// Rows calls fn with each row of a range, in order. An error of fn ends it and is returned as it is. fn must not use
// the snapshot.
func (s *Snapshot) Rows(ctx context.Context, table int, r Range, fn func(*Row) error) error {
	t := s.tables[table]
	q, err := t.statement(t.selectList(), r, t.orderBy())
	if err != nil {
		return err
	}
	const declare = "DECLARE " + cursor + " NO SCROLL CURSOR FOR "
	if _, err := s.conn.PgConn().ExecParams(ctx, declare+q.String(), nil, nil, nil, nil).Close(); err != nil {
		return s.failed(ctx, t, q, declare, err)
	}
	rd := &reader{s: s, t: t, q: q, fn: fn}
	for n := firstFetch; err == nil && n > 0; {
		n, err = rd.fetch(ctx, n)
	}
	if err != nil && (s.conn.IsClosed() || s.conn.PgConn().TxStatus() != 'T') {
		return err
	}
	if closing := s.exec(ctx, "read table "+t.String(), "CLOSE "+cursor); err == nil {
		err = closing
	}
	return err
}

// selectList is the first part of the query: the columns of the event, then what else is needed.
func (t *table) selectList() string {
	var b strings.Builder
	b.WriteString("SELECT ")
	for _, c := range t.relation.Columns {
		b.WriteString(quote(c.Name) + ", ")
	}
	if t.createdAt != nil {
		b.WriteString(quote(t.CreatedAt))
	} else {
		b.WriteString("NULL")
	}
	if t.partitions != nil {
		b.WriteString(", tableoid")
	}
	return b.String()
}

// reader is one run of Rows.
type reader struct {
	s   *Snapshot
	t   *table
	q   *statement
	fn  func(*Row) error
	row Row
}

// fetch reads at most n rows and returns how many to read next, 0 at the end.
func (rd *reader) fetch(ctx context.Context, n int) (next int, err error) {
	rr := rd.s.conn.PgConn().ExecParams(ctx, fmt.Sprintf("FETCH %d FROM %s", n, cursor), nil, nil, nil, nil)
	rows, size := 0, 0
	for err == nil && rr.NextRow() {
		rows++
		values := rr.Values()
		for _, v := range values {
			size += len(v)
		}
		if err = ctx.Err(); err == nil {
			if err = rd.set(values); err == nil {
				err = rd.fn(&rd.row)
			}
		}
	}
	_, closing := rr.Close()
	switch {
	case ctx.Err() != nil:
		return 0, rd.s.fail(ctx, "read table "+rd.t.String(), ctx.Err())
	case err != nil:
		return 0, err
	case closing != nil:
		return 0, rd.s.failed(ctx, rd.t, rd.q, "", closing)
	case rows < n:
		return 0, nil
	}
	return min(max(1, fetchBytes/max(1, size/rows)), 4*n, maxFetch), nil
}

// set makes the row of the values of selectList.
func (rd *reader) set(values [][]byte) error {
	row := &rd.row
	columns := len(rd.t.relation.Columns)
	row.Event.Relation = rd.t.relation
	if rd.t.partitions != nil {
		oid := string(values[columns+1])
		if row.Event.Relation = rd.t.partitions[oid]; row.Event.Relation == nil {
			return fmt.Errorf("read table %s: a row is in partition %s, which was attached after the snapshot was taken; remedy: try again", rd.t, oid)
		}
	}
	row.Event.Values = row.Event.Values[:0]
	for _, v := range values[:columns] {
		row.Event.Values = append(row.Event.Values, decoder.Value{Data: v, Null: v == nil})
	}
	row.CreatedAt = rd.t.createdAtOf(values[columns])
	row.Event.Begin.CommitTime = row.CreatedAt
	if row.CreatedAt.IsZero() {
		row.Event.Begin.CommitTime = rd.s.taken
	}
	return nil
}

// timesEnd is the first time that Kafka cannot hold: see the router's timestamps.
var timesEnd = time.Date(2262, time.January, 1, 0, 0, 0, 0, time.UTC)

// createdAtOf reads a value of CreatedAt.
func (t *table) createdAtOf(text []byte) time.Time {
	if text == nil {
		return time.Time{}
	}
	var layout string
	switch t.createdAt.baseOID {
	case timestamptzOID:
		layout = "2006-01-02 15:04:05.999999-07" // the session's time zone is UTC
	case timestampOID:
		layout = "2006-01-02 15:04:05.999999"
	case dateOID:
		layout = time.DateOnly
	default:
		return time.Time{}
	}
	at, err := time.Parse(layout, string(text))
	if err != nil || at.Unix() < 0 || !at.Before(timesEnd) { // infinity, BC, years of more than four digits
		return time.Time{}
	}
	return at.UTC()
}
