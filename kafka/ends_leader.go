package kafka

import (
	"slices"

	"github.com/IBM/sarama"
)

// readAt reads partitions that one broker leads, until each is done or has met an error.
func (e *ends) readAt(addr string, reads []*endRead) {
	b := sarama.NewBroker(addr)
	err := b.Open(e.ctl.conf)
	if err == nil {
		_, err = b.Connected()
	}
	if err != nil {
		fail(reads, &failure{doing: "reach the broker at " + addr, err: err})
		return
	}
	defer b.Close() //nolint:errcheck // it was only read from
	for len(reads) > 0 && e.p.dialer.ctx.Err() == nil {
		some := reads[:min(len(reads), endsPerRequest)]
		if err := e.step(b, some); err != nil {
			fail(reads, &failure{doing: "read the ends of partitions from the broker at " + addr, err: err})
			return
		}
		reads = slices.DeleteFunc(reads, func(r *endRead) bool { return r.result != "" || r.err != nil })
	}
}

func fail(reads []*endRead, err error) {
	for _, r := range reads {
		if r.result == "" && r.err == nil {
			r.failed(err)
		}
	}
}

// step asks once for the ends that are not known, and fetches once. An error is one of the connection.
func (e *ends) step(b *sarama.Broker, reads []*endRead) error {
	err := e.offsets(b, reads, func(r *endRead) bool { return r.end < 0 && r.lost }, sarama.OffsetOldest, func(r *endRead, start int64) { r.start = start })
	if err == nil {
		err = e.offsets(b, reads, func(r *endRead) bool { return r.end < 0 }, sarama.OffsetNewest, (*endRead).begin)
	}
	if err == nil {
		err = e.fetch(b, reads)
	}
	return err
}

// offsets asks where the logs end, or begin, of those that are due.
func (e *ends) offsets(b *sarama.Broker, reads []*endRead, due func(*endRead) bool, which int64, set func(*endRead, int64)) error {
	req := sarama.NewOffsetRequest(e.p.cluster.version)
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
			r.failed(errUnanswered)
		case block.Err != sarama.ErrNoError:
			r.failed(block.Err)
		default:
			set(r, block.Offset)
		}
	}
	return nil
}

// fetch reads on in each window. The first partition that has anything at all comes with a whole batch, whatever its size; so
// when nothing comes, there is nothing left in any of the windows: it was compacted away.
func (e *ends) fetch(b *sarama.Broker, reads []*endRead) error {
	asked := due(reads)
	if len(asked) == 0 {
		return nil
	}
	req := &sarama.FetchRequest{Version: 11, MaxBytes: endsBytes, SessionEpoch: -1} // without a session; uncommitted records, too
	for _, r := range asked {
		req.AddBlock(r.topic, r.id, r.next, fetchBytes, -1)
	}
	res, err := b.Fetch(req)
	if err == nil && res.ErrorCode != 0 {
		err = sarama.KError(res.ErrorCode)
	}
	if err != nil {
		for _, r := range asked { // one of them may have a batch that cannot be decoded
			r.alone = r.alone || kindOf(err).reason == reasonOther
		}
		return err
	}
	if len(res.Blocks) == 0 && res.ThrottleTime > 0 { // a quota: asked again after it (KIP-219)
		e.p.dialer.pause(res.ThrottleTime)
		return nil
	}
	moved := false
	var quiet, missing []*endRead
	for _, r := range asked {
		block := res.GetBlock(r.topic, r.id)
		on, err := r.answered(block)
		switch {
		case err != nil:
			moved = true
			r.failed(err)
		case on:
			moved, r.odd = true, 0
			r.closed()
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
		r.next = r.until
		r.closed()
	}
	fail(missing, errUnanswered)
	return nil
}

// due are those to fetch now: one alone, or all others.
func due(reads []*endRead) []*endRead {
	var out []*endRead
	for _, r := range reads {
		switch {
		case r.end < 0 || r.result != "" || r.err != nil:
		case r.alone:
			return []*endRead{r}
		default:
			out = append(out, r)
		}
	}
	return out
}
