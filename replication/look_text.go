package replication

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// maxStoredMembers is the maximum number of members in the text of a look. If there are more, the text has none.
const maxStoredMembers = 1000

// String returns the text form that ParseLook reads: words with a letter that says what they are, numbers with
// base 36. The first word is the hash of all rows, which earlier versions compare. The numbers of a member are
// differences, because a position record is written each second.
func (l *Look) String() string {
	var b strings.Builder
	b.WriteString(l.all)
	fmt.Fprintf(&b, " x%s p%s/%s", base36(l.Horizon), base36(l.Publication.OID), l.Publication.hash())
	for i := range l.Outboxes {
		o := &l.Outboxes[i]
		fmt.Fprintf(&b, " t%s/%s/%s", base36(o.OID), o.hash(), o.name())
	}
	var last Member
	for i := range l.Members {
		if len(l.Members) > maxStoredMembers {
			break
		}
		m := &l.Members[i]
		fmt.Fprintf(&b, " m%s/%d/%s/%s", between(last.OID, m.OID), m.Checks, between(m.OID, m.File), between(last.Attached, m.Attached))
		last = *m
	}
	if f := l.found; f != nil {
		fmt.Fprintf(&b, " f%s/%s/%s", f.reason, base36(f.oid), hex.EncodeToString([]byte(f.table)))
	}
	return b.String()
}

func base36[T uint32 | uint64](n T) string { return strconv.FormatUint(uint64(n), 36) }

// between returns the difference of two numbers as text; after reads it.
func between(a, b uint32) string { return strconv.FormatInt(int64(b)-int64(a), 36) }

func after(a uint32, text string) uint32 {
	n, _ := strconv.ParseInt(text, 36, 64)
	return uint32(int64(a) + n)
}

// ParseLook reads the text form of a look, also one that an earlier version wrote: the hash of all rows, and
// "oid/checks" of each partition. It ignores what it does not know.
func ParseLook(text string) *Look {
	l := &Look{}
	var last Member
	for i, word := range strings.Fields(text) {
		field := strings.Split(word[1:], "/")
		for len(field) < 4 {
			field = append(field, "")
		}
		first, _ := strconv.ParseUint(field[0], 36, 64)
		var m Member
		switch {
		case i == 0 && len(word) == 16 && !strings.Contains(word, "/"):
			l.all = word
		case word[0] == 'x':
			l.Horizon = first
		case word[0] == 'p':
			l.Publication = Part{OID: uint32(first), Rows: "#" + field[1]}
		case word[0] == 't':
			l.Outboxes = append(l.Outboxes, Part{OID: uint32(first), Rows: "#" + field[1], Name: "#" + field[2]})
		case word[0] == 'm':
			checks, _ := strconv.ParseInt(field[1], 10, 16)
			m = Member{OID: after(last.OID, field[0]), Checks: int16(checks), Attached: after(last.Attached, field[3])}
			m.File = after(m.OID, field[2])
			l.Members, last = append(l.Members, m), m
		case word[0] == 'f':
			oid, _ := strconv.ParseUint(field[1], 36, 32)
			table, _ := hex.DecodeString(field[2])
			l.found = &change{reason: field[0], oid: uint32(oid), table: string(table)}
		default:
			if n, _ := fmt.Sscanf(word, "%d/%d", &m.OID, &m.Checks); n == 2 {
				l.Members = append(l.Members, m)
			}
		}
	}
	return l
}
