package kafka

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/router"
)

// recordingConn is a connection that stores the bytes written to it.
type recordingConn struct {
	net.Conn
	buf bytes.Buffer
}

func (w *recordingConn) Dial(string, string) (net.Conn, error) { return w, nil }
func (w *recordingConn) Write(b []byte) (int, error)           { return w.buf.Write(b) }
func (w *recordingConn) Read([]byte) (int, error)              { select {} }
func (w *recordingConn) Close() error                          { return nil }
func (w *recordingConn) SetReadDeadline(time.Time) error       { return nil }
func (w *recordingConn) SetWriteDeadline(time.Time) error      { return nil }
func (w *recordingConn) SetDeadline(time.Time) error           { return nil }
func (w *recordingConn) RemoteAddr() net.Addr                  { return &net.TCPAddr{} }
func (w *recordingConn) LocalAddr() net.Addr                   { return &net.TCPAddr{} }

// onTheWire returns the record batch as sarama encodes it in a request.
func onTheWire(t testing.TB, b *batch) []byte {
	t.Helper()
	w := &recordingConn{}
	conf := sarama.NewConfig()
	conf.Version, conf.ApiVersionsRequest = sarama.V3_7_0_0, false
	conf.MetricRegistry = saramaMetrics{noMetrics()}
	conf.Net.Proxy.Enable, conf.Net.Proxy.Dialer = true, w
	broker := sarama.NewBroker("localhost:1")
	must(t, broker.Open(conf))
	req := &sarama.ProduceRequest{Version: 9, RequiredAcks: sarama.NoResponse}
	new(wireRecords).set([]*batch{b})
	req.AddBatch("t", 0, &b.wire)
	must(t, broker.AsyncProduce(req, nil))
	must(t, broker.Close())
	frame := w.buf.Bytes()
	clientID := int(binary.BigEndian.Uint16(frame[12:]))
	got := kmsg.NewPtrProduceRequest()
	got.Version = 9
	if err := got.ReadFrom(frame[14+clientID+1:]); err != nil { // size, key, version, correlation, client id, tags
		t.Fatal(err)
	}
	return got.Topics[0].Partitions[0].Records
}

// decodeBatch decodes a batch with franz-go, which checks its CRC.
func decodeBatch(t testing.TB, raw []byte) []*kgo.Record {
	t.Helper()
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.RecordBatches = raw
	got, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{}, &rp, kgo.DefaultDecompressor(), nil)
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	return got.Records
}

func sameRecord(got *kgo.Record, want *router.Record) error {
	same := func(what string, a, b []byte) error {
		if (a == nil) != (b == nil) || !bytes.Equal(a, b) {
			return fmt.Errorf("%s is %q (nil: %v), want %q (nil: %v)", what, a, a == nil, b, b == nil)
		}
		return nil
	}
	if err := same("key", got.Key, want.Key); err != nil {
		return err
	}
	if err := same("value", got.Value, want.Value); err != nil {
		return err
	}
	if len(got.Headers) != len(want.Headers) {
		return fmt.Errorf("%d headers, want %d", len(got.Headers), len(want.Headers))
	}
	for i, h := range want.Headers {
		if got.Headers[i].Key != h.Name {
			return fmt.Errorf("header %d is %q, want %q", i, got.Headers[i].Key, h.Name)
		}
		if err := same("header "+h.Name, got.Headers[i].Value, h.Value); err != nil {
			return err
		}
	}
	return nil
}

// checkBatch adds records to b, seals it, and compares the encoded records with the original ones.
func checkBatch(t testing.TB, b *batch, codec sarama.CompressionCodec, recs []*router.Record) {
	t.Helper()
	want := make([]*router.Record, len(recs))
	for i, rec := range recs {
		copied := *rec
		copied.Key, copied.Value, copied.Headers = slices.Clone(rec.Key), slices.Clone(rec.Value), slices.Clone(rec.Headers)
		for j, h := range rec.Headers {
			copied.Headers[j].Value = slices.Clone(h.Value)
		}
		want[i] = &copied
		b.add(rec, uint64(i), recordSize(rec))
		for _, s := range [][]byte{rec.Key, rec.Value} { // as the router does when it reuses its memory
			clear(s)
		}
		for _, h := range rec.Headers {
			clear(h.Value)
		}
	}
	b.seal(identity{producer: 7, epoch: 3, sequence: 11}, codec, time.UnixMilli(1_700_000_000_123))
	raw := onTheWire(t, b)
	if codec == sarama.CompressionNone && len(raw) > b.size {
		t.Fatalf("%d bytes, counted as at most %d", len(raw), b.size)
	}
	var head kmsg.RecordBatch
	must(t, head.ReadFrom(raw))
	if head.ProducerID != 7 || head.ProducerEpoch != 3 || head.FirstSequence != 11 || int(head.NumRecords) != len(recs) ||
		int(head.LastOffsetDelta) != len(recs)-1 || head.Attributes != int16(codec) {
		t.Fatalf("header: %+v", head)
	}
	if len(recs) == 1 && codec == sarama.CompressionNone && !bytes.Equal(head.Records, encodeRecord(want[0])) {
		t.Fatalf("our own encoding, which is used to check sizes, differs:\n%q\n%q", encodeRecord(want[0]), head.Records)
	}
	got := decodeBatch(t, raw)
	if len(got) != len(recs) {
		t.Fatalf("%d records, want %d", len(got), len(recs))
	}
	for i, r := range got {
		if err := sameRecord(r, want[i]); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
		if r.Offset != int64(i) || r.Timestamp.UnixMilli() != cmp.Or(want[i].Timestamp, 1_700_000_000_123) {
			t.Fatalf("record %d: offset %d, time %v", i, r.Offset, r.Timestamp)
		}
	}
	if again := onTheWire(t, b); !bytes.Equal(again, raw) {
		t.Fatal("sent again with other bytes")
	}
}

func randomRecord(rng *rand.Rand) *router.Record {
	some := func(most int) []byte {
		switch rng.IntN(6) {
		case 0:
			return nil
		case 1:
			return []byte{}
		}
		b := make([]byte, rng.IntN(most))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	rec := &router.Record{Key: some(40), Value: some(300)}
	for i := range rng.IntN(5) {
		rec.Headers = append(rec.Headers, router.Header{Name: fmt.Sprint("h", i, string(some(5))), Value: some(40)})
	}
	return rec
}

// Another client decodes the records of a batch, even of a reused one.
func TestBatchRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	b := newBatch()
	for range 60 {
		for _, codec := range codecs {
			recs := make([]*router.Record, 1+rng.IntN(30))
			for i := range recs {
				recs[i] = randomRecord(rng)
			}
			checkBatch(t, b, codec, recs)
			b.reset()
		}
	}
}

// TestFarTimes: the first and the last timestamp that the router accepts, in one batch.
func TestFarTimes(t *testing.T) {
	for _, times := range [][]int64{{1, 9_214_646_399_999}, {9_214_646_399_999, 1}, {0, 9_214_646_399_999}} {
		var recs []*router.Record
		for _, at := range times {
			recs = append(recs, &router.Record{Key: []byte("k"), Value: []byte("v"), Timestamp: at})
		}
		checkBatch(t, newBatch(), sarama.CompressionNone, recs)
	}
}

func FuzzBatch(f *testing.F) {
	f.Add([]byte("key"), []byte("value"), "id", []byte("1"), uint8(3), uint8(0))
	f.Add([]byte{}, []byte{}, "", []byte{}, uint8(0), uint8(1))
	f.Add([]byte(nil), []byte(nil), "ä", []byte(nil), uint8(200), uint8(4))
	f.Fuzz(func(t *testing.T, key, value []byte, name string, header []byte, more, codec uint8) {
		b := newBatch()
		first := &router.Record{Key: key, Value: value, Headers: []router.Header{{Name: name, Value: header}}}
		rng := rand.New(rand.NewPCG(uint64(more), 7))
		recs := []*router.Record{first}
		for range more % 8 {
			recs = append(recs, randomRecord(rng))
		}
		for i := range recs { // slices of the fuzzer must not be changed
			recs[i].Key, recs[i].Value = slices.Clone(recs[i].Key), slices.Clone(recs[i].Value)
			for j := range recs[i].Headers {
				recs[i].Headers[j].Value = slices.Clone(recs[i].Headers[j].Value)
			}
		}
		checkBatch(t, b, sarama.CompressionCodec(codec%5), recs)
	})
}

// A record costs no allocation when the buffers are large enough.
func TestBatchAllocates(t *testing.T) {
	rec := benchRecord(1)
	b := newBatch()
	round := func() {
		for n := range uint64(500) {
			b.add(rec, n, recordSize(rec))
		}
		b.seal(identity{}, sarama.CompressionNone, time.Time{})
		b.reset()
	}
	round()
	if n := testing.AllocsPerRun(20, round); n != 0 {
		t.Errorf("%v allocations for a batch of 500 records", n)
	}
}

// Send costs less than 0.1 allocations per event, including batches and requests. Answers are fake, so that no broker
// is in the process.
func TestSendAllocates(t *testing.T) {
	b := newBench(t, 12, 1)
	b.tp.batchLimit, b.tp.aloneAbove = 256<<10, 1_000_000
	v := &verdict{ready: true}
	b.tp.verdict.Store(v)
	b.byName["t"] = b.tp
	acked := 0
	b.cb.Acked = func(events []uint64) { acked += len(events) }
	recs := make([]*router.Record, 100)
	for i := range recs {
		recs[i] = benchRecord(i)
		recs[i].Topic = "t"
	}
	const events = 5000
	round := func() {
		for i := range events {
			must(t, b.Send(recs[i%len(recs)], uint64(i)))
		}
		for b.inflight.Load() > 0 {
			req := b.request()
			b.answer(req, make([]sarama.KError, len(req.batches))...)
		}
	}
	round()
	perEvent := testing.AllocsPerRun(20, round) / events
	t.Logf("%.4f allocations per event", perEvent)
	if perEvent > 0.1 || acked == 0 {
		t.Errorf("%.3f allocations per event", perEvent)
	}
}

// BenchmarkBatch builds batches of 256 KiB with events of 200 bytes, and encodes them with sarama.
func BenchmarkBatch(b *testing.B) {
	recs := make([]*router.Record, 1000)
	for i := range recs {
		recs[i] = benchRecord(i)
	}
	for _, encode := range []bool{false, true} {
		b.Run(map[bool]string{false: "build", true: "build and encode"}[encode], func(b *testing.B) {
			x := newBatch()
			b.ReportAllocs()
			for n := range b.N {
				rec := recs[n%len(recs)]
				size := recordSize(rec)
				if x.size+size > 256<<10 {
					x.seal(identity{}, sarama.CompressionNone, time.Time{})
					if encode {
						onTheWire(b, x)
					}
					x.reset()
				}
				x.add(rec, uint64(n), size)
			}
		})
	}
}

// TestWireRecordsOfARequest: the records of all batches of a request are set, in whatever order requests grow and
// shrink, and release drops every pointer into the batches.
func TestWireRecordsOfARequest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var w wireRecords
	for range 50 {
		var batches []*batch
		var want []*router.Record
		for range 1 + rng.IntN(8) {
			b := newBatch()
			for n := range 1 + rng.IntN(20) {
				rec := randomRecord(rng)
				want = append(want, rec)
				b.add(rec, uint64(n), recordSize(rec))
			}
			batches = append(batches, b)
		}
		w.set(batches)
		for _, b := range batches {
			for i, r := range b.wire.Records {
				got := &kgo.Record{Key: r.Key, Value: r.Value}
				for _, h := range r.Headers {
					got.Headers = append(got.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
				}
				if err := sameRecord(got, want[i]); err != nil || r.OffsetDelta != int64(i) {
					t.Fatalf("record %d (offset %d): %v", i, r.OffsetDelta, err)
				}
			}
			want = want[len(b.wire.Records):]
		}
		if len(want) > 0 {
			t.Fatalf("%d records are missing", len(want))
		}
		w.release()
		for i := range w.records {
			if r := &w.records[i]; r.Key != nil || r.Value != nil || r.Headers != nil {
				t.Fatalf("record %d is kept", i)
			}
		}
		for i := range w.headers {
			if h := &w.headers[i]; h.Key != nil || h.Value != nil {
				t.Fatalf("header %d is kept", i)
			}
		}
	}
}
