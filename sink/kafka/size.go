package kafka

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/klauspost/compress/gzip"
	snappy "github.com/klauspost/compress/snappy/xerial"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/outboxcdc/outboxcdc/router"
)

const (
	// batchHeader is the size of a batch's header, which counts for max.message.bytes.
	batchHeader = 61
	// recordOverhead and headerOverhead are sarama's upper bounds for the variable-length integers of a record.
	recordOverhead = 5*binary.MaxVarintLen32 + binary.MaxVarintLen64 + 1
	headerOverhead = 2 * binary.MaxVarintLen32

	// unknownLimit is Kafka's default max.message.bytes, which is assumed if a topic's setting may not be read.
	unknownLimit = 1048588
	// hugeLimit is the maximum size of a batch in a request of sarama (sarama.MaxRequestSize minus the rest of the
	// request).
	hugeLimit = 100<<20 - 64<<10
)

// roughSize returns an upper bound of the uncompressed size of a batch with only rec, as sarama counts.
func roughSize(rec *router.Record) int { return batchHeader + recordSize(rec) }

// recordSize returns an upper bound of the size of rec in a batch.
func recordSize(rec *router.Record) int {
	return recordOverhead + rec.Size() + headerOverhead*len(rec.Headers)
}

// reserve returns the difference between a batch limit and the topic's limit. It covers the growth of incompressible
// bytes by compression, and the part of the batch header that sarama does not count.
func reserve(limit int) int { return min(1024, 64+limit/16) }

// batchLimit returns the maximum size of a batch, before compression, for a topic with this max.message.bytes.
func batchLimit(topicLimit, most int) int {
	return min(most, max(1, topicLimit-reserve(topicLimit)))
}

// tooLarge reports whether a batch with only rec is larger than limit, the topic's max.message.bytes, and its size:
// an upper bound if it is not.
func tooLarge(rec *router.Record, limit int, codec sarama.CompressionCodec) (size int, is bool) {
	size = roughSize(rec)
	if size+reserve(size) <= limit {
		return size, false
	}
	if size <= hugeLimit {
		exact, err := exactSize(rec, codec)
		if err == nil && exact <= limit {
			return exact, false
		}
		size = exact
	}
	return size, true
}

// TooLarge reports whether the record is larger than limit, a topic's max.message.bytes, as the daemon judges it. 0:
// the limit is not known.
func (c *Client) TooLarge(rec *router.Record, limit int) bool {
	if limit == 0 {
		limit = unknownLimit
	}
	_, is := tooLarge(rec, limit, c.cluster.codec)
	return is
}

// exactSize returns the size of a batch with only rec, encoded and compressed as by sarama.
func exactSize(rec *router.Record, codec sarama.CompressionCodec) (int, error) {
	packed, err := compress(codec, encodeRecord(rec))
	return batchHeader + len(packed), err
}

// encodeRecord encodes rec as the only record of a batch (record format 2). The length, which comes first, is written
// into reserved room at the end, so that a large record is copied once.
func encodeRecord(rec *router.Record) []byte {
	const room = binary.MaxVarintLen32
	out := make([]byte, room, room+roughSize(rec))
	out = append(out, 0, 0, 0) // attributes, timestamp delta, offset delta
	out = appendBytes(out, rec.Key)
	out = appendBytes(out, rec.Value)
	out = binary.AppendVarint(out, int64(len(rec.Headers)))
	for i := range rec.Headers {
		out = binary.AppendVarint(out, int64(len(rec.Headers[i].Name)))
		out = append(out, rec.Headers[i].Name...)
		out = appendBytes(out, rec.Headers[i].Value)
	}
	var length [room]byte
	n := binary.PutVarint(length[:], int64(len(out)-room))
	copy(out[room-n:], length[:n])
	return out[room-n:]
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(dst, -1)
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}

// compress compresses like sarama's unexported function of that name at the default level. A test compares the sizes
// with a broker's limit.
func compress(codec sarama.CompressionCodec, data []byte) ([]byte, error) {
	var buf bytes.Buffer
	switch codec {
	case sarama.CompressionNone:
		return data, nil
	case sarama.CompressionSnappy:
		return snappy.Encode(nil, data), nil
	case sarama.CompressionGZIP:
		w := gzip.NewWriter(&buf)
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
		err := w.Close()
		return buf.Bytes(), err
	case sarama.CompressionLZ4:
		w := lz4.NewWriter(&buf)
		if err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb)); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
		err := w.Close()
		return buf.Bytes(), err
	case sarama.CompressionZSTD:
		enc, err := zstd.NewWriter(nil, zstd.WithZeroFrames(true), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer enc.Close() //nolint:errcheck // EncodeAll leaves nothing to flush
		return enc.EncodeAll(data, nil), nil
	}
	return nil, fmt.Errorf("compress a record: unknown codec %d", codec)
}
