package outboxtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// Kind is an [outbox.Kind].
type Kind interface {
	AggregateType() string
	EventType() string
	SchemaVersion() int
	PayloadType() reflect.Type
}

// contractDir is where the schemas are, in the package of the test.
var contractDir = filepath.Join("testdata", "contract")

var updateContracts = flag.Bool("update-contracts", false, "write the schemas of outboxtest.Contract that are missing or have compatible changes")

// Contract fails if events of the kinds would break a consumer that was written for the schemas in testdata/contract.
// There is one file for each kind, <aggregate type>.<event type>.json, with .v<number> before .json if the kind has a
// schema version. Commit the files: they are what consumers can rely on. A package calls Contract once, with all
// kinds of the service.
//
// A change is incompatible if a consumer of the stored schema cannot read every payload of the present type: a field
// was removed; its type changed, which includes that it may be null now; or a field that was always present is
// optional now (omitempty). A new field is compatible: consumers ignore fields that they do not know, and a new
// consumer finds older records without the field in the topic.
//
// With the flag -update-contracts the test writes missing files and compatible changes. It never overwrites a file
// with an incompatible change: raise the schema version of the kind, which has a file of its own, or delete the file
// if there is no consumer. A file whose kind is missing fails, too, because consumers may wait for its events.
func Contract(t testing.TB, kinds ...Kind) {
	t.Helper()
	for _, problem := range checkContract(contractDir, *updateContracts, kinds) {
		t.Error(problem)
	}
}

// checkContract compares the kinds with the files in a folder. With update it writes files.
func checkContract(dir string, update bool, kinds []Kind) []error {
	var problems []error
	for _, k := range kinds {
		if err := checkKind(dir, update, k); err != nil {
			problems = append(problems, err)
		}
	}
	return append(problems, checkFiles(dir, kinds)...)
}

// checkKind compares one kind with its file.
func checkKind(dir string, update bool, k Kind) error {
	file := filepath.Join(dir, fileName(k))
	current := schemaOf(k.PayloadType())
	text, err := json.MarshalIndent(current, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	stored, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if !update {
			return fmt.Errorf("%s does not exist: run the test with -update-contracts and commit the file", file)
		}
	case err != nil:
		return err
	case bytes.Equal(stored, text):
		return nil
	default:
		var s schema
		if err := json.Unmarshal(stored, &s); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if breaks := compare(&s, current); len(breaks) > 0 {
			return fmt.Errorf("%s: the payload of %s %s would break consumers: %s; undo the change, or raise the schema version of the kind (outbox.SchemaVersion)",
				file, k.AggregateType(), k.EventType(), strings.Join(breaks, "; "))
		}
		if !update {
			return fmt.Errorf("%s: the payload of %s %s has a compatible change: run the test with -update-contracts and commit the file", file, k.AggregateType(), k.EventType())
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// baseName is the name of a kind in names of files.
func baseName(k Kind) string { return url.PathEscape(k.AggregateType() + "." + k.EventType()) }

func fileName(k Kind) string {
	if v := k.SchemaVersion(); v != 0 {
		return fmt.Sprintf("%s.v%d.json", baseName(k), v)
	}
	return baseName(k) + ".json"
}

// checkFiles returns the files of kinds that are missing. Those of other schema versions may stay.
func checkFiles(dir string, kinds []Kind) []error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return []error{err}
	}
	var problems []error
	for _, file := range files {
		known := false
		for _, k := range kinds {
			name := regexp.MustCompile(`^` + regexp.QuoteMeta(baseName(k)) + `(\.v\d+)?\.json$`)
			known = known || name.MatchString(filepath.Base(file))
		}
		if !known {
			problems = append(problems, fmt.Errorf("%s: no kind of the test has this name: consumers may wait for its events; delete the file if none does", file))
		}
	}
	return problems
}
