package main

import (
	"path/filepath"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// Every language of samples/ has mutants, and their texts are in the files.
func TestMutantsCanBePlanted(t *testing.T) {
	root, err := daemon.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range languages {
		if len(mutants[l.name]) == 0 {
			t.Errorf("%s has no mutants", l.name)
		}
		for _, m := range mutants[l.name] {
			dir := t.TempDir()
			if err := copyFolder(dir, filepath.Join(root, "samples", l.name)); err != nil {
				t.Fatal(err)
			}
			if err := m.plant(dir); err != nil {
				t.Errorf("%s: %v", l.name, err)
			}
		}
	}
}
