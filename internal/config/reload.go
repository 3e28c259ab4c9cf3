package config

import (
	"maps"
	"reflect"
)

// Renew is c with what next has of the settings that may change while the daemon runs: secrets, where they and
// certificates are, and the log's level. changed names those; restart names what next has otherwise and c keeps, because it
// is read at the start only.
//
// A postgres.url that leads to another database is kept, too: that is another slot.
func (c *Config) Renew(next *Config) (renewed *Config, changed, restart []string) {
	out := *c
	out.origins = maps.Clone(c.origins)
	otherDatabase := next.Postgres.URLFile == "" && c.Postgres.URLFile == "" && DSNDatabase(next.Postgres.URL) != DSNDatabase(c.Postgres.URL)
	for _, s := range knownSettings() {
		if reflect.DeepEqual(s.value(c), s.value(next)) {
			continue
		}
		if !s.live || s.path == "postgres.url" && otherDatabase {
			restart = append(restart, s.path)
			continue
		}
		reflect.ValueOf(&out).Elem().FieldByIndex(s.field).Set(reflect.ValueOf(s.value(next)))
		changed = append(changed, s.path)
		delete(out.origins, s.path)
		if where, ok := next.origins[s.path]; ok {
			out.origins[s.path] = where
		}
	}
	return &out, changed, restart
}
