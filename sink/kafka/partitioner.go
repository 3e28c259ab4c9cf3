package kafka

import "github.com/IBM/sarama"

// Partitioner finds the partition of a key as Java's default partitioner does, so that a key has the same partition
// whether Java, Kafka Streams, Connect, Debezium or this package produces it. It reuses one message, so that a record
// costs no allocation. It is for one goroutine.
type Partitioner struct {
	java sarama.Partitioner
	msg  *sarama.ProducerMessage // its key is a *hashedKey
}

// NewPartitioner creates a Partitioner.
func NewPartitioner() Partitioner {
	return Partitioner{sarama.NewMurmur2Partitioner(""), &sarama.ProducerMessage{Key: new(hashedKey)}}
}

// Of returns the partition of [router.Record.PartitionBy] in a topic with count partitions. A nil key is hashed as an
// empty one.
//
// [router.Record.PartitionBy]: https://pkg.go.dev/github.com/outboxcdc/outboxcdc/router#Record
func (p Partitioner) Of(key []byte, count int32) int32 {
	*p.msg.Key.(*hashedKey) = key
	id, _ := p.java.Partition(p.msg, count) // Encode returns no error
	return id
}

// hashedKey is a sarama.Encoder of bytes.
type hashedKey []byte

func (k *hashedKey) Encode() ([]byte, error) { return *k, nil }
func (k *hashedKey) Length() int             { return len(*k) }
