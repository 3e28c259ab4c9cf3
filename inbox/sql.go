package inbox

import (
	"context"
	"database/sql"
)

// sqlExec and sqlTx make database/sql a Tx.
type sqlExec struct{ q Execer }

func (e sqlExec) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := e.q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return sqlExec{t.tx}.Exec(ctx, query, args...)
}

func (t sqlTx) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return t.tx.QueryRowContext(ctx, query, args...).Scan(dest...)
}
