package kafka

import "github.com/IBM/sarama"

// partitioner finds the partition of a key as Java's default partitioner does, so that a key is on the same partition whether Java, Kafka
// Streams, Connect, Debezium or this package produces it. It uses one message again and again, so that a record costs no allocation. It is
// for one goroutine.
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

// of returns the partition of a key among count. A nil key is hashed as an empty one.
func (p *partitioner) of(key []byte, count int32) int32 {
	p.key = key
	id, _ := p.java.Partition(&p.msg, count) // an error would be one of Encode
	return id
}

// hashedKey is a sarama.Encoder of bytes.
type hashedKey []byte

func (k *hashedKey) Encode() ([]byte, error) { return *k, nil }
func (k *hashedKey) Length() int             { return len(*k) }
