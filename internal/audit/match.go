package audit

// origin is where a record comes from, as far as that is known.
type origin int

const (
	unknown   origin = iota // it has no position, or that of an earlier version, which does not say of which database of our server it is
	here                    // our database, and the server has its transaction
	lost                    // our server, which does not have its transaction any more
	former                  // a server that ours has replaced
	elsewhere               // another server or database
	undone                  // a Kafka transaction that was aborted or is open: which consumers get the record is not known
)

// isForeign reports whether a record is not of our stream.
func (o origin) isForeign() bool { return o == elsewhere || o == undone }

// match is what a record says about a row with its id.
type match int

const (
	apart  match = iota // it is the record of another event
	unsure              // it may be the row's, or that of another event
	same                // it is the row's
)

// compareEvents is the rule that an id is not an event: ids are used again (after a failover, a restore, a TRUNCATE),
// and other databases and services have the same. A record is the row's if its key and its value are the row's as
// well, and it is of our database or may be. What is left undecided is never counted as nothing: the row is not
// judged. Of two records without a key, the keys are equal.
func compareEvents(from origin, key, value bool) match {
	switch from {
	case lost: // no row of now has that transaction
		return apart
	case elsewhere, undone: // a copy of this row, or another event with the same content
		if key && value {
			return unsure
		}
		return apart
	case here, unknown, former:
	}
	switch {
	case key && value:
		return same
	case key:
		return unsure
	case value && from == here:
		return unsure
	}
	return apart
}

// doubt says why a row is not judged, although a record, or an event in the slot, has its id.
func doubt(what string, from origin, key bool) string {
	const because = ": the id was used again, or the row or the settings have changed since"
	switch {
	case from == undone:
		return what + " of a Kafka transaction that was aborted or is open has this id, key and value: consumers with isolation.level=read_committed do not get it, and others do"
	case from == elsewhere:
		return what + " of another server or database has this id, key and value"
	case key:
		return what + " with this id and key has another value" + because
	}
	return what + " with this id and value has another key" + because
}
