package setup

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// A server that is too old, or cannot decode, is refused. One that is newer than the tested versions is not: a note
// says so.
func TestJudgeServer(t *testing.T) {
	untested := (sql.NewestTested + 1) * 10000
	for _, c := range []struct {
		version      int
		level, notes string
		refused      string
	}{
		{version: 130022, level: "logical", refused: "supports 14 and later"},
		{version: 140000, level: "logical"},
		{version: 180006, level: "replica", refused: "must be logical:"},
		{version: 190000, level: "minimal", refused: "must be logical or replica:"},
		{version: 190000, level: "replica", notes: "effective_wal_level is replica"},
		{version: untested, level: "logical", notes: "is newer than"},
	} {
		cat := &catalog{server: &replication.Server{Version: c.version, WALLevel: c.level, EffectiveWALLevel: c.level}}
		err := cat.judgeServer()
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) || exit.Code(err) != exit.Config {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if notes := strings.Join(cat.notes, "; "); err != nil || (c.notes == "") != (notes == "") || !strings.Contains(notes, c.notes) {
			t.Errorf("%+v: %v, notes %q", c, err, notes)
		}
	}
}
