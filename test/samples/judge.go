package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// entry is a row of the ledger.
type entry struct{ order, amount int64 }

// wrongLedger says that the promise of a sample is broken.
type wrongLedger struct{ when, what string }

func (w *wrongLedger) Error() string { return w.when + ": " + w.what }

// judge compares the orders (amount by id) with the ledger: each order is booked exactly once, with its amount.
func judge(when string, orders map[int64]int64, ledger []entry) error {
	booked, sum := map[int64]int{}, int64(0)
	var wrong []string
	for _, e := range ledger {
		booked[e.order]++
		sum += e.amount
		if amount, exists := orders[e.order]; !exists {
			wrong = append(wrong, fmt.Sprintf("order %d is booked and does not exist", e.order))
		} else if amount != e.amount {
			wrong = append(wrong, fmt.Sprintf("order %d is booked with %d, and has %d", e.order, e.amount, amount))
		}
	}
	want := int64(0)
	for _, order := range slices.Sorted(maps.Keys(orders)) {
		want += orders[order]
		switch n := booked[order]; {
		case n == 0:
			wrong = append(wrong, fmt.Sprintf("order %d is not booked", order))
		case n > 1:
			wrong = append(wrong, fmt.Sprintf("order %d is booked %d times", order, n))
		}
	}
	if len(wrong) == 0 && sum == want {
		return nil
	}
	const most = 3
	if n := len(wrong); n > most {
		wrong = append(wrong[:most], fmt.Sprintf("and %d more", n-most))
	}
	return &wrongLedger{when, fmt.Sprintf("%d orders of %d, %d entries of %d: %s",
		len(orders), want, len(ledger), sum, strings.Join(wrong, "; "))}
}
