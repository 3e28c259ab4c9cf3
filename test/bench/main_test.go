package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestResultsAreKept: a call that writes to an existing file keeps the old results in another file.
func TestResultsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	path := filepath.Join(dir, "bench.jsonl")
	for i := range 2 {
		r, err := openResults(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.add(i); err != nil {
			t.Fatal(err)
		}
		r.close()
	}
	kept, err := filepath.Glob(path + ".*")
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	for path, want := range map[string]string{kept[0]: "0\n", path: "1\n"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v", path, got, err)
		}
	}
}
