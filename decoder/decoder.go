// Package decoder turns the bytes of pgoutput, protocol version 1, into Begin, Event and Commit.
//
// It promises that a message is either understood to its last byte or an error that ends the stream (an unknown one is
// never skipped: it might have been a row), that no input makes it panic or allocate more than the input justifies, that
// nothing it keeps points into the caller's buffer, and that rows and messages cost no allocation. It does no I/O, does not
// know which tables are outboxes (New's caller does) and leaves to package router what the values mean.
//
// The format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
package decoder

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Kind says what a message was.
type Kind uint8

// The kinds of message. Those after KindRelation carry nothing that is delivered, each has its own kind so that it can be
// counted.
const (
	KindBegin    Kind = iota + 1
	KindEvent         // an insert into a table that resolve accepted, or a message that Messages asked for
	KindCommit        //
	KindRelation      // a table's definition, new or sent again
	KindIgnored       // a row of a table that resolve did not accept
	KindUpdate        // an update of a row of an accepted table: the publication sends more than inserts
	KindDelete        // a delete of such a row
	KindTruncate      //
	KindMessage       // pg_logical_emit_message, no event
	KindOrigin        //
	KindType          // the name of a data type
)

var kindNames = [...]string{
	KindBegin: "begin", KindEvent: "event", KindCommit: "commit", KindRelation: "relation", KindIgnored: "ignored",
	KindUpdate: "update", KindDelete: "delete", KindTruncate: "truncate", KindMessage: "message", KindOrigin: "origin",
	KindType: "type",
}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Message is one decoded message. Its pointers are into the decoder and valid until the next call of Decode, except for
// Relation, which is valid for ever.
type Message struct {
	Kind     Kind
	Begin    *Begin    // of KindBegin
	Event    *Event    // of KindEvent and KindUpdate
	Commit   *Commit   // of KindCommit
	Relation *Relation // of KindRelation, KindEvent, KindIgnored, KindUpdate and KindDelete
	Refused  bool      // of KindMessage: it has the prefix of events and belongs to no transaction
}

// Decoder reads one stream, from START_REPLICATION to its end; a new session takes a new one, because a stream that broke
// inside a transaction begins again with Begin, and because every session resolves its tables again. It is not safe
// for concurrent use.
type Decoder struct {
	resolve   func(*Relation) (use bool, err error)
	relations map[uint32]known
	messages  *Relation // of events that are messages; nil: none are

	inTx    bool
	begin   Begin
	commit  Commit
	event   Event
	old     []Value // of an update, as far as they were sent
	ordinal uint64  // of the next event: one bit more than Event.Ordinal has, to see it run over

	err error // the first error; nothing is decoded after it
}

type known struct {
	*Relation
	use bool
	err error // that resolve returned
}

// New returns a decoder. It calls resolve once for each version of a relation, whose Source it may set: false makes its
// rows KindIgnored, without an ordinal; an error ends the stream with the first row: a partition whose rows come as the root's is
// announced as well, and has none.
func New(resolve func(*Relation) (use bool, err error)) *Decoder {
	return &Decoder{resolve: resolve, relations: map[uint32]known{}}
}

// Messages makes events of the logical messages that have just this prefix and belong to a transaction. Their Relation is
// of the given source and has one column, the message's content. One that belongs to no transaction never is an event: it
// is in the stream whatever became of the work that it came from.
func (d *Decoder) Messages(prefix string, source int) {
	d.messages = &Relation{Namespace: "messages", Name: prefix, Source: source, Columns: []Column{{Name: "content", TypeOID: byteaOID}}}
}

const byteaOID = 17

// XID is the transaction that is open, or was last.
func (d *Decoder) XID() uint32 { return d.begin.XID }

// Decode decodes one message, the payload of one XLogData. The result points into walData and into the decoder. After an
// error, an *Error, the stream cannot go on and each later call returns the same error.
func (d *Decoder) Decode(walData []byte) (Message, error) {
	if d.err != nil {
		return Message{}, d.err
	}
	m, err := d.decode(walData)
	if err != nil {
		d.err = err
		return Message{}, err
	}
	return m, nil
}

func (d *Decoder) decode(b []byte) (Message, error) {
	if len(b) == 0 {
		return Message{}, &Error{What: "message", Err: errShort}
	}
	r := reader{b: b, off: 1}
	switch b[0] {
	case 'B':
		return d.decodeBegin(r)
	case 'C':
		return d.decodeCommit(r)
	case 'R':
		return d.decodeRelation(r)
	case 'I':
		return d.decodeInsert(r)
	case 'U':
		return d.decodeUpdate(r)
	case 'D':
		return d.decodeDelete(r)
	case 'M':
		return d.decodeMessage(r)
	// What follows is recognised by its first byte and not read: nothing depends on what is inside.
	case 'T':
		return Message{Kind: KindTruncate}, nil
	case 'O':
		return Message{Kind: KindOrigin}, nil
	case 'Y':
		return Message{Kind: KindType}, nil
	}
	return Message{}, &Error{What: "message", Err: fmt.Errorf("unknown type %q", b[0])}
}

func (d *Decoder) decodeBegin(r reader) (Message, error) {
	r.what = "begin"
	if d.inTx {
		r.fail(0, fmt.Errorf("transaction %d (commit LSN %s) is still open", d.begin.XID, d.begin.CommitLSN))
	}
	begin := Begin{CommitLSN: r.lsn(), CommitTime: r.time(), XID: r.uint32()}
	if err := r.end(); err != nil {
		return Message{}, err
	}
	d.begin, d.inTx, d.ordinal = begin, true, 0
	return Message{Kind: KindBegin, Begin: &d.begin}, nil
}

func (d *Decoder) decodeCommit(r reader) (Message, error) {
	r.what = "commit"
	d.needTx(&r)
	if flags := r.uint8(); flags != 0 {
		r.fail(1, fmt.Errorf("unknown flags %#x", flags))
	}
	commit := Commit{CommitLSN: r.lsn(), EndLSN: r.lsn(), CommitTime: r.time()}
	if commit.CommitLSN != d.begin.CommitLSN {
		r.fail(2, fmt.Errorf("commit LSN %s, but its begin said %s", commit.CommitLSN, d.begin.CommitLSN))
	}
	// The end LSN is what will be confirmed, so a senseless one must not get out of here.
	if commit.EndLSN <= commit.CommitLSN {
		r.fail(10, fmt.Errorf("end LSN %s is not after commit LSN %s", commit.EndLSN, commit.CommitLSN))
	}
	if err := r.end(); err != nil {
		return Message{}, err
	}
	d.commit, d.inTx = commit, false
	return Message{Kind: KindCommit, Commit: &d.commit}, nil
}

func (d *Decoder) decodeRelation(r reader) (Message, error) {
	r.what = "relation"
	rel := &Relation{OID: r.uint32(), Namespace: r.string(), Name: r.string()}
	r.uint8() // replica identity: of no meaning to inserts
	at := r.off
	n := int(r.uint16())
	const least = 1 + 1 + 4 + 4 // flags, an empty name, type, modifier
	if n*least > len(r.b)-r.off {
		r.fail(at, fmt.Errorf("%d columns do not fit into the %d bytes left", n, len(r.b)-r.off))
		n = 0
	}
	rel.Columns = make([]Column, n)
	for i := range rel.Columns {
		r.uint8() // flags: part of the key or not
		rel.Columns[i] = Column{Name: r.string(), TypeOID: r.uint32()}
		r.uint32() // type modifier
	}
	if err := r.end(); err != nil {
		return Message{}, err
	}
	// The server announces a table again whenever anything about it may have changed (and on ANALYZE); the pointer is the
	// version, so it stays the same while the definition does.
	if old, ok := d.relations[rel.OID]; ok && same(old.Relation, rel) {
		return Message{Kind: KindRelation, Relation: old.Relation}, nil
	}
	use, err := d.resolve(rel)
	d.relations[rel.OID] = known{Relation: rel, use: use, err: err}
	return Message{Kind: KindRelation, Relation: rel}, nil
}

func same(a, b *Relation) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && slices.Equal(a.Columns, b.Columns)
}

func (d *Decoder) decodeInsert(r reader) (Message, error) {
	r.what = "insert"
	d.needTx(&r)
	rel, err := d.rowOf(&r)
	if err != nil {
		return Message{}, err
	}
	if !rel.use {
		return Message{Kind: KindIgnored, Relation: rel.Relation}, nil
	}
	if c := r.uint8(); c != 'N' {
		r.fail(5, fmt.Errorf("tuple marker %q instead of 'N'", c))
	}
	d.event.Values = r.tuple(d.event.Values, rel.Relation, false)
	return d.endEvent(&r, rel.Relation, KindEvent)
}

// decodeUpdate takes what the row has become. What was left as it was may be in the old row, if that was sent whole.
func (d *Decoder) decodeUpdate(r reader) (Message, error) {
	r.what = "update"
	d.needTx(&r)
	rel, err := d.rowOf(&r)
	if err != nil {
		return Message{}, err
	}
	if !rel.use {
		return Message{Kind: KindIgnored, Relation: rel.Relation}, nil
	}
	d.old = d.old[:0]
	at := r.off
	marker := r.uint8()
	if marker == 'O' || marker == 'K' { // the whole old row, or its key alone and NULL for all else
		if d.old = r.tuple(d.old, rel.Relation, true); marker == 'K' {
			d.old = d.old[:0]
		}
		at = r.off
		marker = r.uint8()
	}
	if marker != 'N' {
		r.fail(at, fmt.Errorf("tuple marker %q instead of 'N'", marker))
	}
	d.event.Values = r.tuple(d.event.Values, rel.Relation, true)
	for i := range d.event.Values {
		if v := &d.event.Values[i]; v.Unchanged && i < len(d.old) && d.old[i].Data != nil {
			*v = d.old[i]
		}
	}
	return d.endEvent(&r, rel.Relation, KindUpdate)
}

// decodeMessage takes a logical message: one that belongs to no transaction may stand anywhere.
func (d *Decoder) decodeMessage(r reader) (Message, error) {
	r.what = "message"
	flags := r.uint8()
	if flags > 1 {
		r.fail(1, fmt.Errorf("unknown flags %#x", flags))
	}
	transactional := flags == 1
	if transactional {
		d.needTx(&r)
	}
	r.lsn() // of the message's own record
	prefix := r.zeroTerminated()
	at := r.off
	size := r.uint32()
	if int64(size) > int64(len(r.b)-r.off) {
		r.fail(at, fmt.Errorf("content of %d bytes, the message has %d left", size, len(r.b)-r.off))
	}
	content := r.next(int(size))
	ours := d.messages != nil && string(prefix) == d.messages.Name
	if !ours || !transactional {
		if err := r.end(); err != nil {
			return Message{}, err
		}
		return Message{Kind: KindMessage, Refused: ours}, nil
	}
	d.event.Values = append(d.event.Values[:0], Value{Data: content})
	return d.endEvent(&r, d.messages, KindEvent)
}

// endEvent closes a row of an accepted table and numbers it.
func (d *Decoder) endEvent(r *reader, rel *Relation, kind Kind) (Message, error) {
	if d.ordinal > math.MaxUint32 {
		r.fail(0, errors.New("more than 2^32 events in one transaction"))
	}
	if err := r.end(); err != nil {
		return Message{}, err
	}
	d.event.Relation, d.event.Begin, d.event.Ordinal, d.event.Update = rel, d.begin, uint32(d.ordinal), kind == KindUpdate
	d.ordinal++
	return Message{Kind: kind, Event: &d.event, Relation: rel}, nil
}

// tuple takes a row into values, whose memory it uses.
func (r *reader) tuple(values []Value, rel *Relation, update bool) []Value {
	values = values[:0]
	at := r.off
	if n := int(r.uint16()); r.err == nil && n != len(rel.Columns) {
		r.fail(at, fmt.Errorf("a row of %d columns, but %s has %d", n, rel, len(rel.Columns)))
	}
	if r.err != nil {
		return values
	}
	for i := range rel.Columns {
		values = append(values, r.value(&rel.Columns[i], update))
	}
	return values
}

// value takes one column of a tuple.
func (r *reader) value(c *Column, update bool) Value {
	at := r.off
	switch kind := r.uint8(); kind {
	case 'n':
		return Value{Null: true}
	case 't':
		size := r.uint32()
		if int64(size) > int64(len(r.b)-r.off) {
			r.fail(at, fmt.Errorf("column %q claims %d bytes, the message has %d left", c.Name, size, len(r.b)-r.off))
		}
		return Value{Data: r.next(int(size))}
	case 'u':
		if update {
			return Value{Null: true, Unchanged: true}
		}
		// Only an update may leave a TOASTed value out. To take it for NULL would lose the payload.
		r.fail(at, fmt.Errorf("column %q is an unchanged TOAST value, which an insert cannot have", c.Name))
	case 'b':
		r.fail(at, fmt.Errorf("column %q is in binary format, which was never asked for", c.Name))
	default:
		r.fail(at, fmt.Errorf("column %q is of unknown kind %q", c.Name, kind))
	}
	return Value{}
}

// decodeDelete recognises a delete and whose it is; the tuple is not read.
func (d *Decoder) decodeDelete(r reader) (Message, error) {
	r.what = "delete"
	d.needTx(&r)
	rel := d.relation(&r)
	if r.err != nil {
		return Message{}, &Error{What: r.what, Offset: r.bad, Err: r.err}
	}
	kind := KindDelete
	if !rel.use {
		kind = KindIgnored
	}
	return Message{Kind: kind, Relation: rel.Relation}, nil
}

func (d *Decoder) needTx(r *reader) {
	if !d.inTx {
		r.fail(0, errors.New("no transaction is open"))
	}
}

// rowOf finds the table of a row whose values are read next. It fails if resolve did not know whose rows these are.
func (d *Decoder) rowOf(r *reader) (known, error) {
	rel := d.relation(r)
	switch {
	case r.err != nil:
		return known{}, &Error{What: r.what, Offset: r.bad, Err: r.err}
	case rel.err != nil:
		return known{}, &Error{What: "row of relation " + rel.String(), Err: rel.err}
	}
	return rel, nil
}

// relation takes the OID of a row's table and finds what was announced under it.
func (d *Decoder) relation(r *reader) known {
	at := r.off
	oid := r.uint32()
	rel, ok := d.relations[oid]
	if !ok {
		r.fail(at, fmt.Errorf("relation %d was never announced", oid))
	}
	return rel
}
