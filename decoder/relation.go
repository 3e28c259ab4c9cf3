package decoder

import (
	"fmt"
	"hash/fnv"
	"slices"
)

// knownRelation is a relation that resolve accepted, or failed for. Of other tables only a hash is kept: a
// publication FOR ALL TABLES announces every table, also those that are dropped again.
type knownRelation struct {
	*Relation
	err error // of resolve
}

func (d *Decoder) decodeRelation(r *reader, m *Message) error {
	r.what = "relation"
	rel := &Relation{OID: r.uint32(), Namespace: r.string(), Name: r.string()}
	r.uint8() // replica identity
	at := r.off
	n := int(r.uint16())
	const least = 1 + 1 + 4 + 4 // flags, an empty name, type, modifier
	if n*least > len(r.b)-r.off {
		r.fail(at, fmt.Errorf("%d columns do not fit into the %d bytes left", n, len(r.b)-r.off))
		n = 0
	}
	rel.Columns = make([]Column, n)
	for i := range rel.Columns {
		r.uint8() // flags: whether the column is part of the key
		rel.Columns[i] = Column{Name: r.string(), TypeOID: r.uint32()}
		r.uint32() // type modifier
	}
	if err := r.end(); err != nil {
		return err
	}
	// The server announces a table again whenever its definition may have changed (and after ANALYZE). The pointer
	// identifies the version, so it changes only with the definition. A table that was not attached may be attached now:
	// PostgreSQL 14 goes on to send its rows under its own name.
	*m = Message{Kind: KindRelation, Relation: rel}
	hash := hashDefinition(rel)
	if d.ignored[rel.OID] == hash {
		return nil
	}
	if old, ok := d.relations[rel.OID]; ok && !old.Unattached && old.Namespace == rel.Namespace && old.Name == rel.Name && slices.Equal(old.Columns, rel.Columns) {
		m.Relation = old.Relation
		return nil
	}
	delete(d.relations, rel.OID)
	delete(d.ignored, rel.OID)
	use, err := d.resolve(rel)
	if !use && err == nil {
		d.ignored[rel.OID] = hash
		return nil
	}
	d.relations[rel.OID] = knownRelation{Relation: rel, err: err}
	return nil
}

// hashDefinition returns a hash of what identifies a version of a relation; never 0.
func hashDefinition(rel *Relation) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s\x00%s\x00", rel.Namespace, rel.Name)
	for _, c := range rel.Columns {
		_, _ = fmt.Fprintf(h, "%s\x00%d\x00", c.Name, c.TypeOID)
	}
	return h.Sum64() | 1
}

// rowRelation reads the OID of a row's table and returns its relation, nil for a table that is ignored. It fails if
// resolve failed for the relation.
func (d *Decoder) rowRelation(r *reader) (*Relation, error) {
	rel := d.relation(r)
	switch {
	case r.err != nil:
		return nil, &Error{What: r.what, Offset: r.errOffset, Err: r.err}
	case rel.err != nil:
		return nil, &Error{What: "row of relation " + rel.String(), Err: rel.err}
	}
	return rel.Relation, nil
}

// relation reads an OID and returns the relation that was announced with it.
func (d *Decoder) relation(r *reader) knownRelation {
	at := r.off
	oid := r.uint32()
	rel, ok := d.relations[oid]
	if !ok && d.ignored[oid] == 0 {
		r.fail(at, fmt.Errorf("relation %d was never announced", oid))
	}
	return rel
}
