package relay

import (
	"errors"
	"slices"
	"testing/synctest"
)

// talker returns a sink of a process that is alive and not frozen.
func (w *world) talker() *simSink {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*simSink
	for _, s := range w.kafka.sinks {
		if s.open() {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return pick(w, all)
}

func (s *simSink) open() bool { return !s.closed && !s.failed && !s.p.isDead && s.p.thaw == nil }

// acknowledge acknowledges the next few records of one lane, or of all lanes.
func (w *world) acknowledge() {
	s := w.talker()
	if s == nil {
		return
	}
	everything := w.IntN(4) == 0
	lanes := w.lanes()
	for lane, from := 0, w.IntN(lanes); lane < lanes; lane++ {
		i := (lane + from) % lanes
		w.mu.Lock()
		n := len(s.lanes[i])
		w.mu.Unlock()
		if n == 0 {
			continue
		}
		if !everything {
			n = 1 + w.IntN(n)
		}
		for n > 0 {
			batch := w.ack(s, i, 1+w.IntN(n))
			if batch == 0 {
				return
			}
			n -= batch
		}
		if !everything {
			return
		}
	}
}

// ack acknowledges a batch of at most this number of records. It returns their number, 0 if none can be acknowledged.
func (w *world) ack(s *simSink, lane, most int) int {
	w.mu.Lock()
	if !s.open() || s.stuck || s.left[lane] == 0 {
		w.mu.Unlock()
		return 0
	}
	var batch []uint64
	for _, f := range s.lanes[lane][:min(most, s.left[lane])] {
		if f.refused() {
			break
		}
		f.store() // if the process dies now, the ack is lost
		batch = append(batch, f.n)
	}
	if len(batch) == 0 {
		w.mu.Unlock()
		w.reject(s)
		return 0
	}
	if s.p.count("ack") != nil {
		return 0
	}
	for range batch {
		s.take(lane)
	}
	w.reached[batchAcked] = w.reached[batchAcked] || len(batch) > 1
	s.telling++
	w.mu.Unlock()
	s.cb.Acked(batch)
	w.mu.Lock()
	s.telling--
	s.poke()
	w.mu.Unlock()
	synctest.Wait()
	return len(batch)
}

// flying returns the numbers of the records that have left.
func (s *simSink) flying() []uint64 {
	var out []uint64
	for i, lane := range s.lanes {
		for _, f := range lane[:s.left[i]] {
			out = append(out, f.n)
		}
	}
	slices.Sort(out)
	return out
}

// reject refuses everything in flight as one batch.
func (w *world) reject(s *simSink) {
	w.mu.Lock()
	w.refusals++
	numbers := s.flying()
	if s.n == 1 && (s.suspected() == 1 && s.p.group() == 1 || s.alone() != nil) {
		w.refusedAlone(s)
	}
	s.refused = map[*event]bool{}
	for i, lane := range s.lanes {
		for _, f := range lane[:s.left[i]] {
			s.refused[f.e] = true
		}
	}
	w.mu.Unlock()
	w.failSink(s, &refusal{numbers}, 0)
}

// failSink ends a session with Kafka. In each lane up to one form-th of the records in flight is stored; form 0: none.
func (w *world) failSink(s *simSink, err error, form int) {
	w.mu.Lock()
	if !s.open() || s.p.count("fail") != nil {
		w.mu.Unlock()
		return
	}
	w.disturb()
	for i, lane := range s.lanes {
		n := 0
		lane = lane[:s.left[i]]
		switch {
		case form == 1:
			n = len(lane)
		case form > 1 && len(lane) > 0:
			n = w.IntN(len(lane) + 1)
			w.reached[partialBatch] = w.reached[partialBatch] || n > 0 && n < len(lane)
		}
		for _, f := range lane[:n] {
			if f.refused() {
				break
			}
			f.store()
		}
	}
	s.failed = true
	w.reached[deadBesideFailure] = w.reached[deadBesideFailure] || len(s.lanes[deadLane]) > 0 && len(s.lanes[deadLane]) < s.n
	w.see(s.p, "Kafka fails", uint64(form), uint64(s.n))
	if refused := errors.As(err, new(*refusal)); s.p.stream != nil && !refused && !(s.p.terminated && s.n == 0) { // the drain is complete
		s.p.stream.forbidMoves()
	}
	s.poke()
	w.mu.Unlock()
	s.cb.Failed(err)
	synctest.Wait()
}

func (w *world) kafkaFails() {
	s := w.talker()
	if s == nil {
		return
	}
	switch w.IntN(8) {
	case 0:
		w.mu.Lock()
		acked := s.p.acked
		if !acked {
			w.excused[PermissionDenied] = "a permission denied before the first ack"
		}
		w.mu.Unlock()
		w.failSink(s, permissionError{}, w.IntN(3))
	case 1:
		w.failSink(s, simReasoned{}, w.IntN(3))
	default:
		w.failSink(s, errKafka, w.IntN(3))
	}
}

// refuse refuses a batch of two or more records that are not refused alone.
func (w *world) refuse() {
	s := w.talker()
	if s == nil {
		return
	}
	w.mu.Lock()
	n := s.requests()
	w.mu.Unlock()
	if n > 1 {
		w.reject(s)
	}
}

// hang keeps the records in flight without an answer.
func (w *world) hang() {
	if s := w.talker(); s != nil {
		w.edit(func() {
			s.stuck = true
			w.reached[hungProducer] = w.reached[hungProducer] || s.n > 0
			w.disturb()
		})
	}
}

// storeOnly stores records that the broker may acknowledge later.
func (w *world) storeOnly() {
	if s := w.talker(); s != nil {
		w.edit(func() {
			i := w.IntN(w.lanes())
			lane := s.lanes[i][:s.left[i]]
			for _, f := range lane[:w.IntN(len(lane)+1)] {
				if f.refused() {
					break
				}
				f.store()
			}
		})
	}
}

// landLate stores records that arrived over a connection that is closed now.
func (w *world) landLate() {
	w.edit(func() {
		k := w.kafka
		if len(k.orphans) == 0 {
			return
		}
		i := w.IntN(len(k.orphans))
		lane := k.orphans[i]
		k.orphans = slices.Delete(k.orphans, i, i+1)
		for _, f := range lane[:1+w.IntN(len(lane))] {
			if f.refused() {
				break
			}
			w.reached[landedLate] = w.reached[landedLate] || !f.stored
			f.store()
		}
	})
}
