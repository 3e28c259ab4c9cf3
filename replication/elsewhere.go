package replication

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// elsewhereSQL finds the publications besides $3 that publish inserts and name a partition: one of the tables, or one
// below or above them. Whether a row filter is on it does not matter here.
const elsewhereSQL = `
WITH RECURSIVE named AS (
  SELECT c.oid FROM unnest($1::text[], $2::text[]) t(schema, name) JOIN pg_namespace n ON n.nspname = t.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
),
down AS (SELECT oid FROM named UNION SELECT i.inhrelid FROM down d JOIN pg_inherits i ON i.inhparent = d.oid),
up AS (SELECT oid FROM named UNION SELECT i.inhparent FROM up u JOIN pg_inherits i ON i.inhrelid = u.oid)
SELECT ARRAY(SELECT p.pubname::text FROM pg_publication p WHERE p.pubinsert AND p.pubname <> $3 AND EXISTS (
  SELECT FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
   WHERE r.prpubid = p.oid AND c.relispartition AND c.oid IN (SELECT oid FROM down UNION SELECT oid FROM up)
     AND coalesce(to_jsonb(r)->>'prexcept', 'false') = 'false') ORDER BY 1),
  coalesce((SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() AND wal_status IS DISTINCT FROM 'lost' AND slot_name = substring(
    (SELECT obj_description(p.oid, 'pg_publication') FROM pg_publication p WHERE p.pubname = $3) FROM '^handed over from slot ([a-z0-9_]+), .*, at [0-9A-F/]+$')), '')`

// Elsewhere is what gives the rows of a daemon to another one, or is to give them to it.
type Elsewhere struct {
	Publications []string // besides ours, which name partitions of the tables
	Slot         string   // of what other daemons have handed over to our publication: ours is to be a copy
}

// Found reports whether there is any.
func (e Elsewhere) Found() bool { return len(e.Publications) > 0 || e.Slot != "" }

// ReadElsewhere reads which publications besides ours name partitions of the tables: other daemons may deliver their
// rows, or may be about to. And it reads whether the slot exists that has what was committed since daemons have handed
// over to our publication (package sql has the comment).
func ReadElsewhere(ctx context.Context, conn *pgx.Conn, tables []Table, ours string) (e Elsewhere, err error) {
	schemas, names := []string{}, []string{} // never nil, which would be NULL
	for i := range tables {
		schemas, names = append(schemas, tables[i].Schema), append(names, tables[i].Name)
	}
	if err := conn.QueryRow(ctx, elsewhereSQL, schemas, names, ours).Scan(&e.Publications, &e.Slot); err != nil {
		return e, classify("look for other publications of the partitions", inspecting, err)
	}
	return e, nil
}

// Remedy is the remedy for a missing slot or publication if ReadElsewhere has found any: to create it would have rows
// delivered twice if other daemons have taken over, or have not handed over yet, and would lose rows if the hand-over
// has not ended.
func (e Elsewhere) Remedy() string {
	if e.Slot != "" {
		return "other daemons have handed over to this one, and its slot is to be a copy of slot " + e.Slot + ": " +
			"repeat outboxcdc setup sql --from (docs/scale.md), which copies it, and create nothing"
	}
	return "publications name its partitions: " + strings.Join(e.Publications, ", ") +
		". If daemons deliver from those, or are to (docs/scale.md), create nothing, and leave this daemon stopped: it was replaced, or they have not handed over yet. " +
		"If none is to, drop those publications, and start this daemon again"
}

// explainElsewhere replaces the remedy of an error about a missing slot or publication if other publications name the
// partitions.
func (c *Config) explainElsewhere(ctx context.Context, conn *pgx.Conn, err error) error {
	if kind := KindOf(err); kind != SlotMissing && kind != PublicationMissing {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	elsewhere, cannot := ReadElsewhere(ctx, conn, c.Tables, c.Publication)
	if cannot != nil {
		return cannot // a remedy that may be wrong is worse than none
	}
	if found, ok := errors.AsType[*Error](err); ok && elsewhere.Found() {
		found.Remedy = elsewhere.Remedy()
	}
	return err
}
