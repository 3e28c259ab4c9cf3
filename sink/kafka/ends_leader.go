package kafka

import (
	"slices"

	"github.com/IBM/sarama"
)

// readAt reads partitions from their leader, until each has a result or an error.
func (e *ends) readAt(addr string, reads []*endRead) {
	conn := newBrokerConn(addr, e.p.dialer, e.ctl.conf)
	defer func() {
		conn.cut()
		_ = conn.broker.Close() // nothing was written
	}()
	if err := conn.open(); err != nil {
		failAll(reads, &failure{op: "reach the broker at " + addr, err: err})
		return
	}
	b := conn.broker
	for len(reads) > 0 && e.p.dialer.ctx.Err() == nil {
		some := reads[:min(len(reads), endsPerRequest)]
		if err := e.step(b, some); err != nil {
			failAll(reads, &failure{op: "read the ends of partitions from the broker at " + addr, err: err})
			return
		}
		reads = slices.DeleteFunc(reads, func(r *endRead) bool { return r.result != "" || r.err != nil })
	}
}

func failAll(reads []*endRead, err error) {
	for _, r := range reads {
		if r.result == "" && r.err == nil {
			r.noteError(err)
		}
	}
}

// step requests the unknown ends, and fetches once. Its error is an error of the connection.
func (e *ends) step(b *sarama.Broker, reads []*endRead) error {
	err := e.offsets(b, reads, func(r *endRead) bool { return r.endUnknown && r.startUnknown }, sarama.OffsetOldest, func(r *endRead, start int64) { r.start = start })
	if err == nil {
		err = e.offsets(b, reads, func(r *endRead) bool { return r.endUnknown }, sarama.OffsetNewest, (*endRead).setEnd)
	}
	if err == nil {
		err = e.fetch(b, reads)
	}
	return err
}

// offsets requests the end, or the beginning, of the logs for which due is true.
func (e *ends) offsets(b *sarama.Broker, reads []*endRead, due func(*endRead) bool, which int64, set func(*endRead, int64)) error {
	req := sarama.NewOffsetRequest(ProtocolVersion)
	var asked []*endRead
	for _, r := range reads {
		if r.err == nil && due(r) {
			asked = append(asked, r)
			req.AddBlock(r.topic, r.id, which, 1)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	res, err := b.GetAvailableOffsets(req)
	if err != nil {
		return err
	}
	for _, r := range asked {
		block := res.GetBlock(r.topic, r.id)
		switch {
		case block == nil:
			r.noteError(errUnanswered)
		case block.Err != sarama.ErrNoError:
			r.noteError(block.Err)
		default:
			set(r, block.Offset)
		}
	}
	return nil
}

// fetch fetches once for all windows. The first partition with records is answered with at least one whole batch of
// any size. So an empty answer means that no window has records left, because they were compacted.
func (e *ends) fetch(b *sarama.Broker, reads []*endRead) error {
	asked := nextReads(reads)
	if len(asked) == 0 {
		return nil
	}
	req := &sarama.FetchRequest{Version: 11, MaxBytes: endsBytes, SessionEpoch: -1} // without a session; uncommitted records, too
	for _, r := range asked {
		req.AddBlock(r.topic, r.id, r.next, fetchBytes, r.epoch) // another leader, or an old one, refuses
	}
	res, err := b.Fetch(req)
	if err == nil && res.ErrorCode != 0 {
		err = sarama.KError(res.ErrorCode)
	}
	if isUndecodable(err) && len(asked) == 1 { // it is the answer to this request: the connection is new
		asked[0].noteError(asked[0].damaged(err))
		return err
	}
	if err != nil {
		for _, r := range asked { // one of the batches may be impossible to decode
			r.fetchAlone = r.fetchAlone || kindOf(err).reason == reasonOther || isUndecodable(err)
		}
		return err
	}
	if len(res.Blocks) == 0 && res.ThrottleTime > 0 { // a quota: repeated after the pause (KIP-219)
		e.p.dialer.pause(res.ThrottleTime)
		return nil
	}
	moved := false
	var quiet, missing []*endRead
	for _, r := range asked {
		block := res.GetBlock(r.topic, r.id)
		before := r.next
		on, err := r.readBlock(block)
		switch {
		case err != nil:
			moved = true
			r.noteError(err)
		case on:
			moved, r.moved, r.unclassified = true, true, 0
			e.p.cluster.endsProgress.Add(max(0, r.next-before))
			r.advanceWindow()
		case block == nil:
			missing = append(missing, r)
		default:
			quiet = append(quiet, r)
		}
	}
	if moved {
		return nil
	}
	for _, r := range quiet {
		r.next = r.windowEnd
		r.advanceWindow()
	}
	failAll(missing, errUnanswered)
	return nil
}

// nextReads returns the partitions to fetch now: one that must be fetched alone, or all.
func nextReads(reads []*endRead) []*endRead {
	var out []*endRead
	for _, r := range reads {
		switch {
		case r.endUnknown || r.result != "" || r.err != nil:
		case r.fetchAlone:
			return []*endRead{r}
		default:
			out = append(out, r)
		}
	}
	return out
}
