package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// errMoved means that rows are no longer where they were read. A rewrite of the table (VACUUM FULL, CLUSTER) keeps
// its OID and the transactions that wrote the rows, so that another row of the same transaction can be at a place.
var errMoved = &InUseError{errors.New("its rows have other places by now, as after VACUUM FULL or CLUSTER; the next run reads them again")}

// OldRows implements [Server].
func (p *Postgres) OldRows(ctx context.Context, leaf *Leaf, from, keepSince time.Time, limit int) (*Rows, error) {
	if err := p.fit(ctx, p.control, leaf); err != nil {
		return nil, err
	}
	query := "SELECT ctid::text, xmin::text, " + p.created + p.utc + ", (SELECT pg_relation_filenode($4::oid::regclass)) FROM ONLY " + quote(leaf) +
		" WHERE " + p.created + " < $1" + p.utc + " AND " + p.created + " >= $2" + p.utc + " ORDER BY " + p.created + " LIMIT $3"
	if from.IsZero() {
		query = strings.Replace(query, ">= $2"+p.utc, ">= coalesce($2::timestamptz"+p.utc+", '-infinity')", 1)
	}
	rows, err := p.control.Query(ctx, query, keepSince, nullable(from), limit, leaf.OID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := &Rows{Before: keepSince}
	writers := map[string]bool{}
	for rows.Next() {
		var place, writer string
		var created pgtype.Timestamptz
		if err := rows.Scan(&place, &writer, &created, &out.File); err != nil {
			return nil, err
		}
		if len(out.Places) == 0 {
			out.Age.Oldest = created.Time
		}
		out.Age.Newest = created.Time
		out.Places = append(out.Places, place)
		if !writers[writer] {
			writers[writer] = true
			out.Writers = append(out.Writers, writer)
		}
	}
	return out, rows.Err()
}

func nullable(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Delete implements [Server].
func (p *Postgres) Delete(ctx context.Context, leaf *Leaf, rows *Rows) (deleted int64, err error) {
	var same bool
	err = p.control.QueryRow(ctx, "WITH d AS (DELETE FROM ONLY "+quote(leaf)+" WHERE ctid = ANY (ARRAY(SELECT ctid FROM ONLY "+quote(leaf)+
		" WHERE ctid = ANY ($1::text[]::tid[]) AND xmin = ANY ($2::text[]::xid[]) AND "+p.created+" < $5"+p.utc+
		" AND ($3 = $6::oid OR $6 IN (SELECT relid FROM pg_partition_ancestors($3::oid::regclass)))"+
		" AND pg_relation_filenode(tableoid) = $4 AND tableoid = $3 FOR UPDATE SKIP LOCKED)) RETURNING 1) "+
		"SELECT count(*), pg_relation_filenode($3::oid::regclass) IS NOT DISTINCT FROM $4::oid FROM d",
		rows.Places, rows.Writers, leaf.OID, rows.File, rows.Before, p.root).Scan(&deleted, &same)
	if err == nil && !same {
		err = errMoved
	}
	return deleted, inUse(err)
}

// Copy implements [Server].
func (p *Postgres) Copy(ctx context.Context, leaf *Leaf, rows *Rows, w io.Writer) error {
	// COPY has no parameters. Both lists consist of digits, commas and parentheses of the server's own.
	if err := p.reopen(ctx); err != nil {
		return err
	}
	_, err := p.work.PgConn().CopyTo(ctx, w, fmt.Sprintf("COPY (SELECT * FROM ONLY %s WHERE ctid = ANY ('{\"%s\"}'::tid[]) AND xmin = ANY ('{%s}'::xid[]) "+
		"AND tableoid = %d AND pg_relation_filenode(tableoid) = %d) TO STDOUT (FORMAT text)",
		quote(leaf), strings.Join(rows.Places, `","`), strings.Join(rows.Writers, ","), leaf.OID, rows.File))
	var same bool
	if err == nil {
		err = p.work.QueryRow(ctx, "SELECT pg_relation_filenode($1::oid::regclass) IS NOT DISTINCT FROM $2::oid", leaf.OID, rows.File).Scan(&same)
	}
	if err == nil && !same {
		err = errMoved
	}
	return err
}
