package config

import (
	"maps"
	"reflect"
)

// Renew returns c with the values of next for the settings that may change while the daemon runs: secrets, the paths of
// secrets and certificates, and the log level. changed names the settings that changed. restart names the settings that
// differ in next and keep the value of c, because the daemon reads them only at the start.
//
// A postgres.url with another database keeps the value of c as well, because another database has another slot.
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
