package replication

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// similarSQL compares names by their letters and digits in lower case, without a plural ending. A y that becomes ies
// counts as i.
const similarSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
   AND regexp_replace(regexp_replace(regexp_replace(lower(c.relname), '[^[:alnum:]]', '', 'g'), 'y$', 'i'), '[es]+$', '')
     = regexp_replace(regexp_replace(regexp_replace(lower($2), '[^[:alnum:]]', '', 'g'), 'y$', 'i'), '[es]+$', '')
   AND (n.nspname, c.relname) <> ($1::name, $2::name) AND (n.nspname, c.relname) NOT IN (SELECT * FROM unnest($3::name[], $4::name[]))
 ORDER BY n.nspname <> $1, 1 LIMIT 10`

// FindSimilar returns the tables whose name is easily taken for that of an outbox, as outbox.table names them: the
// names differ in upper and lower case, in signs such as the underscore, in a plural ending, or only in the schema.
// It does not return the outboxes.
func FindSimilar(ctx context.Context, conn *pgx.Conn, schema, name string, outboxes []Table) ([]string, error) {
	schemas, names := namesOf(outboxes)
	rows, _ := conn.Query(ctx, similarSQL, pgx.QueryExecModeExec, schema, name, schemas, names) // CollectRows returns the error
	similar, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, classify("look for tables with a name similar to "+name, inspecting, err)
	}
	return similar, nil
}

// TableSetting returns the line of a configuration file that names a table, of which quoted is the quoted name.
func TableSetting(quoted string) string {
	return fmt.Sprintf("outbox: {table: '%s'}", strings.ReplaceAll(quoted, "'", "''"))
}

// namesOf returns schemas and names of tables; they are never nil, which would be NULL.
func namesOf(tables []Table) (schemas, names []string) {
	schemas, names = []string{}, []string{}
	for i := range tables {
		schemas, names = append(schemas, tables[i].Schema), append(names, tables[i].Name)
	}
	return schemas, names
}
