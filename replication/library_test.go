package replication

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A server that lacks the library of a type cannot send the rows with that type. Its SQLSTATE is that of a WAL segment
// that was removed, but the slot is not lost: once the library is there, the rows are sent.
func TestLibraryOfATypeIsMissing(t *testing.T) {
	b := newBench(t, "14")
	var folder string
	must(t, b.sql.QueryRow(t.Context(), `SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'`).Scan(&folder))
	code, err := os.ReadFile(filepath.Join(folder, "hstore.so"))
	must(t, err)
	dir, err := os.MkdirTemp("", "library-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	file := filepath.Join(dir, "pairs.so")
	must(t, os.WriteFile(file, code, 0o755))
	b.exec(`CREATE TYPE pairs`)
	b.exec(`CREATE FUNCTION pairs_in(cstring) RETURNS pairs AS '` + file + `', 'hstore_in' LANGUAGE c STRICT IMMUTABLE`)
	b.exec(`CREATE FUNCTION pairs_out(pairs) RETURNS cstring AS '` + file + `', 'hstore_out' LANGUAGE c STRICT IMMUTABLE`)
	b.exec(`CREATE TYPE pairs (INPUT = pairs_in, OUTPUT = pairs_out, STORAGE = extended)`)
	b.exec(`ALTER TABLE outbox ADD COLUMN p pairs`)
	b.exec(`INSERT INTO outbox (id, p) VALUES (1, 'a=>1')`)
	must(t, os.Rename(file, file+".away"))
	st := b.open()
	_, err = b.next(st, newDecoder(b.T, st))
	if KindOf(err) != CannotSend {
		t.Errorf("%s: %v", KindOf(err), err)
	}
	_ = st.Close(0, time.Now())
	must(t, os.Rename(file+".away", file))
	st = b.open()
	if _, err := b.next(st, newDecoder(b.T, st)); err != nil {
		t.Error(err)
	}
	_ = st.Close(0, time.Now())
}
