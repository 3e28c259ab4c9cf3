// Package inbox lets a consumer of outboxcdc act on each record exactly once, if the effect of the record is in a
// Postgres.
//
// outboxcdc delivers a record again after some crashes, and Kafka gives a consumer records again after a rebalance. A
// consumer that stores what it has handled in the transaction of the effect recognizes both. [Store] does that with
// statements of your own transaction; it depends on the standard library only. Package pgxinbox has the same for
// transactions of pgx.
//
// A record is recognized in one of two ways:
//
//   - By position ([Store.After]): one row per partition for ever, because outboxcdc sends the events of a partition
//     in the order of their positions.
//   - By id ([Store.Once]): one row per record, until [Store.Prune] deletes it. Records that a person has sent with a
//     command, such as outboxcdc replay, are outside that order and have to be recognized by their id; [ReadHeaders]
//     tells which these are.
//
// Packages kgoinbox and saramainbox do all of it: their Run reads from Kafka with franz-go or sarama, calls a handler
// with a transaction, and stores mark and offset in the same transaction.
//
// The two tables belong to you: put what [Store.Schema] returns into your migrations.
package inbox
