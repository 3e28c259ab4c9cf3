package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The first argument that makes this program a process that executes the SQL sample. SQL has no Kafka client, and a
// process can be killed like the programs of the other languages.
const (
	sqlProduce = "sql-produce" // FILE... COUNT
	sqlConsume = "sql-consume" // FILE GROUP TOPIC
)

// runSQL reports whether the arguments ask for it.
func runSQL(args []string) (bool, error) {
	if len(args) == 0 || args[0] != sqlProduce && args[0] != sqlConsume {
		return false, nil
	}
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return true, err
	}
	defer func() { _ = db.Close(ctx) }()
	if args[0] == sqlProduce {
		return true, produceSQL(ctx, db, args[1:])
	}
	return true, consumeSQL(ctx, db, args[1], args[2], args[3])
}

// produceSQL executes the files in turn, as psql would; the last argument is the number of executions.
func produceSQL(ctx context.Context, db *pgx.Conn, args []string) error {
	files, last := args[:len(args)-1], args[len(args)-1]
	count, err := strconv.Atoi(last)
	if err != nil {
		return err
	}
	for n := range count {
		text, err := os.ReadFile(files[n%len(files)])
		if err != nil {
			return err
		}
		// The simple protocol, where a text may have several statements.
		if _, err := db.PgConn().Exec(ctx, string(text)).ReadAll(); err != nil {
			return fmt.Errorf("execute %s: %w", files[n%len(files)], err)
		}
	}
	return nil
}

// consumeSQL executes the file for each record, and then commits the record's offset.
func consumeSQL(ctx context.Context, db *pgx.Conn, file, group, topic string) error {
	statement, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("BOOTSTRAP_SERVERS")), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.SessionTimeout(6*time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollRecords(ctx, 100)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, r := range fetches.Records() {
			var id *string
			for _, h := range r.Headers {
				if h.Key == "id" {
					value := string(h.Value)
					id = &value
				}
			}
			if _, err := db.Exec(ctx, string(statement), group, r.Topic, id, string(r.Value)); err != nil {
				return fmt.Errorf("execute %s: %w", file, err)
			}
		}
		if err := client.CommitRecords(ctx, fetches.Records()...); err != nil {
			return err
		}
	}
}
