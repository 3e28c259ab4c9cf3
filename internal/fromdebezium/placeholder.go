package fromdebezium

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// placeholder is a value that Connect or Debezium Server resolves when it starts (a ConfigProvider's ${file:name:key}, or ${NAME}).
var placeholder = regexp.MustCompile(`\$\{(?:[A-Za-z0-9_.-]+:[^}]*|[A-Z][A-Z0-9_]*)\}`)

// environment is the placeholder that our configuration has, too.
var environment = regexp.MustCompile(`^\$\{env:[^}:]+\}$`)

// foreign is the first placeholder in a value that our configuration does not have; "" if there is none.
func foreign(value string) string {
	for _, p := range placeholder.FindAllString(value, -1) {
		if !environment.MatchString(p) {
			return p
		}
	}
	return ""
}

// named takes an option that becomes a part of the connection string. Instead of a value with a placeholder it returns a host name that
// cannot exist (RFC 2606); postgres puts values back whose placeholders our configuration has, because a URL would encode them.
func (c *conversion) named(option string) string {
	value := c.get(option)
	if !placeholder.MatchString(value) {
		return value
	}
	name := strings.TrimPrefix(option, "database.") + ".invalid"
	if foreign(value) == "" {
		c.replaced[name] = value
	}
	return name
}

// placeholders notes the options that were converted with a value that is not in the file.
func (c *conversion) placeholders() {
	for _, name := range slices.Sorted(maps.Keys(c.props)) {
		first, unknown := placeholder.FindString(c.props[name]), foreign(c.props[name])
		switch {
		case !c.used[name] || first == "" || strings.Contains(name, "password"):
		case unknown == "":
			c.note(name, "%s is read from the environment of outboxcdc: set the variable there", first)
		default:
			c.note(name, "%s stands for a value that is not in the file: write the value into the configuration, or ${file:/path} for the whole content of a file", unknown)
		}
	}
}
