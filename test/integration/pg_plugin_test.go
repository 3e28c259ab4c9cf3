package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// F55: output_plugin_libraries does not name pgoutput any more. A running daemon retries, with the hint of the server
// and the remedy, and resumes; a fresh start ends with 77; `doctor` and `setup apply` say the same, although the role
// may not read the setting.
func TestOutputPluginRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: fullPostgres(t, "18", nil)})
	o.proves("F55", "pgoutput removed from output_plugin_libraries, then added")
	const hint, remedy = "If it is safe for all REPLICATION users", "add pgoutput to the server's setting output_plugin_libraries"
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	o.insert("order", "k", 1, 10)
	o.awaitArrived(patience)
	o.awaitSettled()

	o.exec("ALTER SYSTEM SET output_plugin_libraries = test_decoding")
	o.exec("SELECT pg_reload_conf()")
	await(t, patience, "the setting", func() error {
		if now := o.query("SHOW output_plugin_libraries"); now != "test_decoding" {
			return errors.New(now)
		}
		return nil
	})
	o.endSessions()
	o.insert("order", "k", 11, 10)
	await(t, patience, "/readyz with the hint and the remedy", func() error {
		code, body, err := r.get("/readyz")
		if text := string(body); err != nil || code != 503 || !strings.Contains(text, hint) || !strings.Contains(text, remedy) {
			return errors.Join(err, fmt.Errorf("%d %s", code, body))
		}
		return nil
	})
	out, notes, exit := o.runBinary(env, "doctor")
	if exit != 77 || !strings.Contains(out, hint) || !strings.Contains(out, "ALTER SYSTEM SET output_plugin_libraries = pgoutput") {
		t.Errorf("doctor: exit code %d\n%s%s", exit, out, notes)
	}
	r.kill9()
	o.start(env...).awaitStop(patience, 77, hint, remedy)
	o.awaitSlotFree()
	o.exec("SELECT pg_drop_replication_slot('" + o.name + "')")
	out, err := o.command(nil, "setup", "apply")
	if err == nil || !strings.Contains(out, hint) || !strings.Contains(out, remedy) {
		t.Errorf("setup apply: %v\n%s", err, out)
	}

	o.exec("ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding")
	o.exec("SELECT pg_reload_conf()")
	o.recover(env, 0)
	o.startStreaming(env...)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "the restart reads the ends")
}
