// Package decoder turns the bytes of pgoutput, protocol version 1, into Begin, Event and Commit.
//
// It guarantees that a message is either decoded to its last byte or an error that ends the stream (an unknown
// message is never skipped, because it might be a row), that no input makes it panic or allocate more memory than the
// input has, that it keeps no pointer into the caller's buffer, and that rows and messages cost no allocation. It
// does no I/O. The caller of New knows which tables are outboxes, and package router what the values mean.
//
// The format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
package decoder

import (
	"errors"
	"fmt"
)

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages. Those after KindRelation contain no event; they are distinguished so that they can be counted.
const (
	KindBegin    Kind = iota + 1
	KindEvent         // an insert into a table that resolve accepted, or a logical message with the prefix of Messages
	KindCommit        //
	KindRelation      // a table's definition, new or sent again
	KindIgnored       // a row of a table that resolve did not accept
	KindUpdate        // an update of a row of an accepted table, if the publication publishes updates
	KindDelete        // a delete of such a row
	KindTruncate      //
	KindMessage       // a logical message that is not an event
	KindOrigin        //
	KindType          // the name of a data type
	KindAbort         // the end of a rolled-back transaction, of which nothing was sent
)

var kindNames = [...]string{
	KindBegin: "begin", KindEvent: "event", KindCommit: "commit", KindRelation: "relation", KindIgnored: "ignored",
	KindUpdate: "update", KindDelete: "delete", KindTruncate: "truncate", KindMessage: "message", KindOrigin: "origin",
	KindType: "type", KindAbort: "abort",
}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Message is one decoded message. Its pointers are valid until the next call of Decode, except for Relation, which is
// always valid.
type Message struct {
	Kind     Kind
	Begin    *Begin    // of KindBegin
	Event    *Event    // of KindEvent and KindUpdate
	Commit   *Commit   // of KindCommit
	Relation *Relation // of KindRelation, KindEvent, KindUpdate and KindDelete
	Refused  bool      // of KindMessage: the message has the prefix of events, but is not transactional
}

// Decoder decodes one stream, from START_REPLICATION to its end. A new session needs a new decoder, because the
// previous stream may have ended within a transaction, and because every session resolves its tables again. A Decoder
// is not safe for concurrent use.
type Decoder struct {
	resolve         func(*Relation) (use bool, err error)
	relations       map[uint32]knownRelation
	ignored         map[uint32]uint64 // other tables: hash of the definition
	messageRelation *Relation         // of events that are logical messages; nil: there are none

	inTx      bool
	begin     Begin
	commit    Commit
	event     Event
	oldValues []Value // of an update, if the whole old row was sent
	ordinal   uint64  // of the next event; larger than Event.Ordinal to detect an overflow

	err error // the first error; every later call of Decode returns it
}

// New returns a decoder that calls resolve once for each version of a relation. resolve may set Source. If it returns
// false, the relation's rows are KindIgnored and have no ordinal. If it returns an error, the first row ends the
// stream. The announcement alone does not, because the server also announces partitions whose rows it sends as rows
// of their root.
func New(resolve func(*Relation) (use bool, err error)) *Decoder {
	return &Decoder{resolve: resolve, relations: map[uint32]knownRelation{}, ignored: map[uint32]uint64{}}
}

// Messages makes events of the transactional logical messages with exactly this prefix. Their Relation has the given
// source and one column, the message's content. A message that is not transactional is never an event, because the
// server sends it even if the transaction that wrote it was rolled back.
func (d *Decoder) Messages(prefix string, source int) {
	d.messageRelation = &Relation{Namespace: "messages", Name: prefix, Source: source, Columns: []Column{{Name: "content", TypeOID: byteaOID}}}
}

const byteaOID = 17

// XID returns the id of the open transaction, or of the last one.
func (d *Decoder) XID() uint32 { return d.begin.XID }

// Decode decodes one message, the payload of one XLogData. The result points into walData and into the decoder. The
// error is an *Error, and each later call returns the same one.
func (d *Decoder) Decode(walData []byte) (m Message, err error) {
	if d.err != nil {
		return Message{}, d.err
	}
	d.err = d.decode(walData, &m)
	return m, d.err
}

func (d *Decoder) decode(b []byte, m *Message) error {
	if len(b) == 0 {
		return &Error{What: "message", Err: errShort}
	}
	r := &reader{b: b, off: 1}
	switch b[0] {
	case 'B':
		return d.decodeBegin(r, m)
	case 'C':
		return d.decodeCommit(r, m)
	case 'R':
		return d.decodeRelation(r, m)
	case 'I':
		return d.decodeInsert(r, m)
	case 'U':
		return d.decodeUpdate(r, m)
	case 'D':
		return d.decodeDelete(r, m)
	case 'M':
		return d.decodeMessage(r, m)
	case 'A':
		return d.decodeAbort(r, m)
	// The content of the following messages is not used.
	case 'T':
		*m = Message{Kind: KindTruncate}
		return nil
	case 'O':
		*m = Message{Kind: KindOrigin}
		return nil
	case 'Y':
		*m = Message{Kind: KindType}
		return nil
	}
	return &Error{What: "message", Err: fmt.Errorf("unknown type %q", b[0])}
}

func (d *Decoder) decodeBegin(r *reader, m *Message) error {
	r.what = "begin"
	if d.inTx {
		r.fail(0, fmt.Errorf("transaction %d (commit LSN %s) is still open", d.begin.XID, d.begin.CommitLSN))
	}
	begin := Begin{CommitLSN: r.lsn(), CommitTime: r.time(), XID: r.uint32()}
	if err := r.end(); err != nil {
		return err
	}
	d.begin, d.inTx, d.ordinal = begin, true, 0
	*m = Message{Kind: KindBegin, Begin: &d.begin}
	return nil
}

func (d *Decoder) decodeCommit(r *reader, m *Message) error {
	r.what = "commit"
	d.requireTx(r)
	if flags := r.uint8(); flags != 0 {
		r.fail(1, fmt.Errorf("unknown flags %#x", flags))
	}
	commit := Commit{CommitLSN: r.lsn(), EndLSN: r.lsn(), CommitTime: r.time()}
	if commit.CommitLSN != d.begin.CommitLSN {
		r.fail(2, fmt.Errorf("commit LSN %s, but the begin message has %s", commit.CommitLSN, d.begin.CommitLSN))
	}
	// The end LSN will be confirmed, so it must be plausible.
	if commit.EndLSN <= commit.CommitLSN {
		r.fail(10, fmt.Errorf("end LSN %s is not after commit LSN %s", commit.EndLSN, commit.CommitLSN))
	}
	if err := r.end(); err != nil {
		return err
	}
	d.commit, d.inTx = commit, false
	*m = Message{Kind: KindCommit, Commit: &d.commit}
	return nil
}

// decodeMessage decodes a logical message. One that is not transactional may be within or between transactions.
func (d *Decoder) decodeMessage(r *reader, m *Message) error {
	r.what = "message"
	flags := r.uint8()
	if flags > 1 {
		r.fail(1, fmt.Errorf("unknown flags %#x", flags))
	}
	transactional := flags == 1
	if transactional {
		d.requireTx(r)
	}
	r.lsn() // of the message's own record
	prefix := r.zeroTerminated()
	at := r.off
	size := r.uint32()
	if int64(size) > int64(len(r.b)-r.off) {
		r.fail(at, fmt.Errorf("content of %d bytes, the message has %d left", size, len(r.b)-r.off))
	}
	content := r.next(int(size))
	ours := d.messageRelation != nil && string(prefix) == d.messageRelation.Name
	if !ours || !transactional {
		if err := r.end(); err != nil {
			return err
		}
		*m = Message{Kind: KindMessage, Refused: ours}
		return nil
	}
	d.event.Values = append(d.event.Values[:0], Value{Data: content})
	return d.endEvent(r, m, d.messageRelation, KindEvent)
}

// decodeAbort decodes Stream Abort, which belongs to streaming mode. PostgreSQL 18 up to and including 18.6 also
// sends it without that mode, for the subtransactions of a rolled-back transaction that was larger than
// logical_decoding_work_mem. Nothing of them was sent before, so there is nothing to undo. The server decodes a
// rollback between the transactions that it sends. A Stream Abort within a transaction would be about rows that were
// sent, and is an error.
func (d *Decoder) decodeAbort(r *reader, m *Message) error {
	r.what = "stream abort"
	if d.inTx {
		r.fail(0, fmt.Errorf("transaction %d (commit LSN %s) is open", d.begin.XID, d.begin.CommitLSN))
	}
	r.uint32() // the transaction
	r.uint32() // the subtransaction
	if err := r.end(); err != nil {
		return err
	}
	*m = Message{Kind: KindAbort}
	return nil
}

func (d *Decoder) requireTx(r *reader) {
	if !d.inTx {
		r.fail(0, errors.New("no transaction is open"))
	}
}
