//go:build unix

package outbox_test

import (
	"context"
	"syscall"
	"testing"
)

// reportCPU reports the CPU time of the process, which other processes disturb less than the time of the clock.
func reportCPU(b *testing.B) {
	b.ReportAllocs()
	cpu := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	begin := cpu()
	b.Cleanup(func() { b.ReportMetric(float64(cpu()-begin)/float64(b.N), "cpu-ns/op") })
}

// BenchmarkEmit is Emit with a driver that does nothing.
func BenchmarkEmit(b *testing.B) {
	c, e := benchmarked()
	w := newWriter(b, *c)
	_, tx := fakeTx(b)
	reportCPU(b)
	for b.Loop() {
		if err := w.Emit(context.Background(), tx, e); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStatement is the part of BenchmarkEmit that is database/sql.
func BenchmarkStatement(b *testing.B) {
	c, e := benchmarked()
	_, tx := fakeTx(b)
	statements, err := newWriter(b, *c).Statements(context.Background(), e)
	if err != nil {
		b.Fatal(err)
	}
	reportCPU(b)
	for b.Loop() {
		if _, err := tx.ExecContext(context.Background(), statements[0].SQL, statements[0].Args...); err != nil {
			b.Fatal(err)
		}
	}
}
