package golden

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Make creates the tables of a set in an empty database.
func (s *Set) Make(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range s.Setup {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// Play writes the rows, each case in a transaction.
func (s *Set) Play(ctx context.Context, conn *pgx.Conn) error {
	for _, c := range s.Cases {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for _, sql := range c.SQL {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return fmt.Errorf("%.200s: %w", sql, err)
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("case %s: %w", c.Name, err)
		}
	}
	return nil
}
