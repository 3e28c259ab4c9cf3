package replication

import (
	"errors"
	"slices"
	"testing"
)

// A catalog check fails for a change of any of the tables.
func TestVerifyEachTable(t *testing.T) {
	c := &Config{Publication: "pub", Slot: "slot", Tables: []Table{{Schema: "public", Name: "a"}, {Schema: "public", Name: "b"}, {Schema: "sales", Name: "a"}}}
	names := []string{"public.a", "public.b", "sales.a"}
	good := func() *guardRow { return &guardRow{exists: true, tables: slices.Clone(names)} }
	must(t, c.verify(good()))
	for i := range names {
		for _, now := range []string{"", "public.other"} {
			g := good()
			g.tables[i] = now
			if err := c.verify(g); err == nil || KindOf(err) != PublicationChanged {
				t.Errorf("%s is called %q: %v", names[i], now, err)
			}
		}
	}
	g := good()
	g.tables = g.tables[:2]
	if err := c.verify(g); err == nil || KindOf(err) != PublicationChanged {
		t.Errorf("the last table is missing: %v", err)
	}
	g = good()
	g.change = &change{reason: altered}
	if err := c.verify(g); err == nil || KindOf(err) != PublicationChanged {
		t.Errorf("altered: %v", err)
	}
	g = good()
	if g.pending = true; !errors.Is(c.verify(g), ErrUndecided) {
		t.Error("a pending alteration passes")
	}
	// While a detach ends, the members of a check lack the partition, so the next check could not recognize the detach.
	g.unpublished = &UnpublishedTable{Name: "public.leaf", reason: detaching}
	if err := c.verify(g); err == nil || KindOf(err) != PublicationChanged {
		t.Errorf("a detach that is about to end: %v", err)
	}
	g = good()
	if g.exists = false; KindOf(c.verify(g)) != PublicationMissing {
		t.Error("the publication was dropped")
	}
}
