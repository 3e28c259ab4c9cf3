package kafka

import "github.com/IBM/sarama"

// partitioner finds the partition of a key as Java's default partitioner does, so that a key has the same partition
// whether Java, Kafka Streams, Connect, Debezium or this package produces it. It reuses one message, so that a record
// costs no allocation. It is for one goroutine.
type partitioner struct {
	java sarama.Partitioner
	msg  sarama.ProducerMessage
	key  hashedKey
}

func newPartitioner() *partitioner {
	p := &partitioner{java: sarama.NewMurmur2Partitioner("")}
	p.msg.Key = &p.key
	return p
}

// partition returns the partition of a key for a partition count. A nil key is hashed as an empty one.
func (p *partitioner) partition(key []byte, count int32) int32 {
	p.key = key
	id, _ := p.java.Partition(&p.msg, count) // Encode returns no error
	return id
}

// Partitioner finds the partition that a Producer sends a key to. It is for one goroutine.
type Partitioner struct{ p *partitioner }

// NewPartitioner creates a Partitioner.
func NewPartitioner() Partitioner { return Partitioner{newPartitioner()} }

// Of returns the partition of [router.Record.PartitionBy] in a topic with count partitions.
//
// [router.Record.PartitionBy]: https://pkg.go.dev/github.com/outboxcdc/outboxcdc/router#Record
func (p Partitioner) Of(key []byte, count int32) int32 { return p.p.partition(key, count) }

// hashedKey is a sarama.Encoder of bytes.
type hashedKey []byte

func (k *hashedKey) Encode() ([]byte, error) { return *k, nil }
func (k *hashedKey) Length() int             { return len(*k) }
