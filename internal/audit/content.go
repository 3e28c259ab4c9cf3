package audit

import (
	"hash/maphash"

	"github.com/outboxcdc/outboxcdc/router"
)

// content hashes what a record consists of, except for the header with its position.
func (r *run) content(topic string, key, value []byte, headers func(func(string, []byte) bool)) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	hashPart(&h, []byte(topic))
	hashPart(&h, key)
	hashPart(&h, r.Router.Stable(value))
	for name, b := range headers {
		if name != router.HeaderPosition {
			hashPart(&h, []byte(name))
			hashPart(&h, b)
		}
	}
	return h.Sum64()
}

// Hash hashes a value, without the time of the commit, which a row does not have. A tombstone and an empty value
// differ.
func Hash(route *router.Router, value []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	hashPart(&h, route.Stable(value))
	return h.Sum64()
}

var seed = maphash.MakeSeed()

func hashPart(h *maphash.Hash, b []byte) {
	var size [9]byte
	n := len(b)
	for i := range 8 {
		size[i] = byte(n >> (8 * i))
	}
	if b == nil {
		size[8] = 1
	}
	h.Write(size[:]) //nolint:errcheck // never fails
	h.Write(b)       //nolint:errcheck // never fails
}
