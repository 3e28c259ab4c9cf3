package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/pgfull"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// pluginOutcomes are the cases of a server that has output_plugin_libraries. The other servers of these tests are
// older.
func pluginOutcomes(t *testing.T, w *world) {
	t.Cleanup(func() {
		if t.Skipped() {
			w.seen[pgPlugins+" FAIL 77"] = true
		}
	})
	s, err := pgtest.Start(t.Context(), pgfull.ForTest(t, "18").Options(pgtest.Options{Settings: map[string]string{"max_slot_wal_keep_size": "50GB", "fsync": "off"}}))
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	w.makeRole(s)
	p := w.newPlace(t, s).make()
	p.wants() // the role may not read the setting: with a copy of the slot
	p.await("the end of the copy", "SELECT count(*) = 1 FROM pg_replication_slots")
	restrict := func() {
		p.exec("ALTER SYSTEM SET output_plugin_libraries = test_decoding, 'my \"own', 'a, b'", "SELECT pg_reload_conf()")
		p.await("the setting", "SELECT current_setting('output_plugin_libraries') LIKE 'test_decoding%'")
	}
	restrict()
	refused := outcome{pgPlugins, "FAIL 77", "library \"pgoutput\" may not be used"}
	p.wants(refused)
	if text := p.examine().String(); !strings.Contains(text, "hint of the server: If it is safe") || !strings.Contains(text, "ALTER SYSTEM SET output_plugin_libraries = pgoutput") {
		t.Errorf("the server's hint or the remedy is missing:\n%s", text)
	}
	p.exec("GRANT pg_read_all_settings TO " + roleName)
	refused.words = "output_plugin_libraries is 'test_decoding"
	p.wants(refused)
	for _, f := range p.examine().Findings {
		if f.Check == pgPlugins {
			for _, r := range f.Remedy {
				p.exec(r.Text)
			}
		}
	}
	p.await("the remedy", `SELECT current_setting('output_plugin_libraries') = 'pgoutput, test_decoding, "my ""own", "a, b"'`)
	p.wants()
	p.exec("REVOKE pg_read_all_settings FROM "+roleName, "SELECT pg_drop_replication_slot('"+p.name+"')")
	p.wants(outcome{slotExists, "FAIL 79", ""})
	if f := p.found(pgPlugins); f.Level != NotChecked || !strings.Contains(f.Text, "SHOW output_plugin_libraries") {
		t.Errorf("without a slot: %+v", f)
	}
}

func (p *place) found(check string) Finding {
	p.t.Helper()
	r := p.examine()
	return r.Findings[slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Check == check })]
}

func TestSplitLibraries(t *testing.T) {
	for list, want := range map[string][]string{
		"": nil, " , ": nil, "pgoutput": {"pgoutput"}, `pgoutput, test_decoding`: {"pgoutput", "test_decoding"},
		`"a, b",pgoutput `: {"a, b", "pgoutput"}, `$libdir/x, "my ""own"`: {"$libdir/x", `my "own`},
	} {
		if got := splitLibraries(list); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", list, got, want)
		}
	}
}
