package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/replication"
)

// checkPlugins checks whether the server may load pgoutput. It runs after the slot was read.
func (e *examination) checkPlugins(ctx context.Context) {
	var list *string
	err := e.conn.QueryRow(ctx, "SELECT current_setting('output_plugin_libraries', true)").Scan(&list)
	switch {
	case replication.LacksPrivilege(err):
		e.tryPlugin(ctx)
	case err != nil:
		e.cannot(pgPlugins, err)
	case list == nil:
		e.ok(pgPlugins, "the server has no such setting: it loads every output plugin")
	default:
		names := splitLibraries(*list)
		if slices.Contains(names, "pgoutput") {
			e.ok(pgPlugins, "%s", *list)
			return
		}
		quoted := []string{"pgoutput"}
		for _, n := range names {
			quoted = append(quoted, literal(n))
		}
		e.fail(pgPlugins, Denied, alterSystem("output_plugin_libraries = %s", strings.Join(quoted, ", ")),
			"the server does not load pgoutput: output_plugin_libraries is '%s'", *list)
	}
}

// tryPlugin has the server load pgoutput for a temporary copy of the slot, because it does not show its setting to
// every role.
func (e *examination) tryPlugin(ctx context.Context) {
	s := e.slot
	if s == nil || s.Kind != "logical" || s.Plugin != "pgoutput" || s.Database != e.server.Database || s.Temporary || s.ConfirmedFlush == 0 || s.Lost() {
		e.skip(pgPlugins, "role %s may not read it, and there is no slot to try it with: as a superuser, SHOW output_plugin_libraries", e.server.user)
		return
	}
	name := fmt.Sprintf("%.40s_doctor_%d", e.Slot, e.conn.PgConn().PID())
	_, err := e.conn.Exec(ctx, "SELECT pg_copy_logical_replication_slot($1, $2, true)", e.Slot, name)
	switch {
	case replication.PluginRefused(err):
		e.fail(pgPlugins, Denied, []Remedy{advicef("%s", replication.PluginRemedy)}, "the server does not load pgoutput: %s", cause(err))
		return
	case err != nil:
		e.skip(pgPlugins, "role %s may not read it, and the slot cannot be copied to try it: %s", e.server.user, cause(err))
		return
	}
	// The server drops the copy in any case when the connection ends.
	if _, err := e.conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", name); err != nil {
		e.cannot(pgPlugins, err)
		return
	}
	e.ok(pgPlugins, "the server loads pgoutput")
}

// splitLibraries splits a list of libraries as the server does: by commas, and a name may be in double quotes.
func splitLibraries(list string) (names []string) {
	var name strings.Builder
	var quoted bool
	end := func() {
		if n := strings.TrimSpace(name.String()); n != "" {
			names = append(names, n)
		}
		name.Reset()
	}
	for i, r := range list {
		switch {
		case r == '"':
			if quoted = !quoted; quoted && i > 0 && list[i-1] == '"' { // two quotes in a quoted name are one
				name.WriteRune(r)
			}
		case r == ',' && !quoted:
			end()
		default:
			name.WriteRune(r)
		}
	}
	end()
	return names
}
