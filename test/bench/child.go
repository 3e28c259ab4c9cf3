package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// jobVariable is the environment variable that makes a process of this program a yardstick, and says which.
const jobVariable = "OUTBOXCDC_BENCH_JOB"

// job is the task of a yardstick.
type job struct {
	What, URL, Slot, Topic, Result string
	Rows                           int
	Brokers                        []string
}

// jobResult is the report of a yardstick.
type jobResult struct {
	Allocs float64 // per event
}

// doJob is the main function of a yardstick.
func doJob(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work := map[string]func(context.Context, *job) error{"nosink": noSink, "plain": plain}[j.What]
	if err := work(context.Background(), &j); err != nil {
		return err
	}
	runtime.ReadMemStats(&after)
	out, err := json.Marshal(jobResult{Allocs: float64(after.Mallocs-before.Mallocs) / float64(j.Rows)})
	if err != nil {
		return err
	}
	return os.WriteFile(j.Result, out, 0o644)
}

// noSink reads, decodes and routes as the daemon does, and discards the records.
func noSink(ctx context.Context, j *job) error {
	source, err := replication.NewSource(replication.Config{
		URL: func() (string, error) { return j.URL, nil }, Slot: j.Slot, Publication: "outboxcdc", WalSenderTimeout: time.Minute,
		Tables: []replication.Table{{
			Schema: "public", Name: "outbox", Columns: []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"},
		}},
		ReadInterval: 10 * time.Millisecond, ReceiveBuffer: replication.AutoReceiveBuffer,
	})
	if err != nil {
		return err
	}
	st, err := source.Open(ctx)
	if err != nil {
		return err
	}
	defer st.Close(0, time.Now()) //nolint:errcheck // nothing is confirmed
	rt, err := router.New(router.DefaultConfig())
	if err != nil {
		return err
	}
	dec := decoder.New(func(rel *decoder.Relation) (bool, error) {
		table, err := st.Resolve(ctx, &replication.Announced{OID: rel.OID, Schema: rel.Namespace, Name: rel.Name})
		if err == nil && table == 0 {
			err = rt.Bind(rel)
		}
		return table == 0, err
	})
	var rec router.Record
	for n := 0; n < j.Rows; {
		st.SetDeadline(time.Now().Add(time.Minute))
		for range 256 {
			msg, err := st.Receive()
			if err != nil {
				return err
			}
			if msg.Data == nil {
				continue
			}
			m, err := dec.Decode(msg.Data)
			if err != nil {
				return err
			}
			if m.Kind != decoder.KindEvent {
				continue
			}
			if err := rt.Route(m.Event, checkpoint.Position{SystemID: 1, Timeline: 1, CommitLSN: 1, Ordinal: m.Event.Ordinal}, &rec); err != nil {
				return err
			}
			if n++; n == j.Rows {
				return nil
			}
		}
	}
	return nil
}

// plain is a naive relay: blocking reads, pglogrepl's own messages, an AsyncProducer with defaults except for safety,
// one message for each row. It does not keep acknowledgements in order and confirms nothing.
func plain(ctx context.Context, j *job) error {
	conn, err := pgconn.Connect(ctx, j.URL+"&replication=database")
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is confirmed
	err = pglogrepl.StartReplication(ctx, conn, j.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'outboxcdc'"},
	})
	if err != nil {
		return err
	}
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V3_6_0_0
	cfg.Producer.RequiredAcks, cfg.Producer.Idempotent, cfg.Net.MaxOpenRequests = sarama.WaitForAll, true, 1
	cfg.Producer.Return.Successes = true
	cfg.Producer.Compression = sarama.CompressionLZ4
	producer, err := sarama.NewAsyncProducer(j.Brokers, cfg)
	if err != nil {
		return err
	}
	acked := make(chan error, 1)
	go func() {
		for n := 0; n < j.Rows; n++ {
			select {
			case <-producer.Successes():
			case e := <-producer.Errors():
				acked <- e
				return
			}
		}
		acked <- nil
	}()
	relations := map[uint32]*pglogrepl.RelationMessage{}
	for n := 0; n < j.Rows; {
		raw, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		data, ok := raw.(*pgproto3.CopyData)
		if !ok {
			return fmt.Errorf("unexpected message %T", raw)
		}
		if data.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		x, err := pglogrepl.ParseXLogData(data.Data[1:])
		if err != nil {
			return err
		}
		m, err := pglogrepl.Parse(x.WALData)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pglogrepl.RelationMessage:
			relations[m.RelationID] = m
		case *pglogrepl.InsertMessage:
			row := map[string]string{}
			for i, c := range relations[m.RelationID].Columns {
				row[c.Name] = string(m.Tuple.Columns[i].Data)
			}
			producer.Input() <- &sarama.ProducerMessage{
				Topic: j.Topic + row["aggregate_type"], Key: sarama.StringEncoder(row["aggregate_id"]), Value: sarama.StringEncoder(row["payload"]),
				Headers: []sarama.RecordHeader{{Key: []byte("id"), Value: []byte(row["id"])}, {Key: []byte("type"), Value: []byte(row["event_type"])}},
			}
			n++
		}
	}
	return <-acked
}
