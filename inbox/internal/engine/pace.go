package engine

import (
	"math"
	"time"
)

// pace knows how long a record takes, so that a transaction has as many records as fit into its time.
type pace struct{ perRecord time.Duration }

// firstBatch is the size of a batch while it is not known how long a record takes.
const firstBatch = 50

// size returns how many records the next batch has, at most limit.
func (p *pace) size(limit int, within time.Duration) int {
	switch {
	case p.perRecord == 0:
		return min(limit, firstBatch)
	case within/p.perRecord > math.MaxInt32:
		return limit
	}
	return max(1, min(limit, int(within/p.perRecord)))
}

// observe adds how long n records have taken. A slower pace counts at once, and a faster one gradually.
func (p *pace) observe(n int, took time.Duration) {
	if n == 0 {
		return
	}
	now := max(1, took/time.Duration(n))
	if now < p.perRecord {
		now = (now + p.perRecord) / 2
	}
	p.perRecord = now
}
