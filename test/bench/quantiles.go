package main

import (
	"math"
	"slices"
)

// quantiles are in milliseconds.
type quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
	N    int     `json:"n"`
}

// quantilesOf uses the nearest rank: each quantile is a value that occurred.
func quantilesOf(all []float64) quantiles {
	if len(all) == 0 {
		return quantiles{}
	}
	slices.Sort(all)
	at := func(q float64) float64 { return all[max(0, int(math.Ceil(q*float64(len(all))))-1)] }
	return quantiles{P50: at(0.5), P99: at(0.99), P999: at(0.999), Max: all[len(all)-1], N: len(all)}
}
