// Package inbox lets a consumer of outboxcdc act on each event exactly once, if the effect of the event is in a
// Postgres.
//
// outboxcdc delivers an event again after some crashes, a person can send it again with a command, and Kafka gives a
// consumer records again after a rebalance. A consumer that stores the ids of the events that it has handled, in the
// transaction of the effect, recognizes all of these ([Store.Once]). This package depends on the standard library only.
// Package pgxinbox has the same for transactions of pgx.
//
// Packages kgoinbox and saramainbox do all of it: their Run reads from Kafka with franz-go or sarama, calls a handler
// with a transaction, stores ids and offset in the same transaction, and deletes old ids.
//
// The two tables belong to you: put what [Store.Schema] returns into your migrations.
package inbox
