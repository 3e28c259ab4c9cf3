package fromdebezium

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// placeholder is a value that Connect or Debezium Server resolves when it starts (a ConfigProvider's ${file:name:key},
// or ${NAME}).
var placeholder = regexp.MustCompile(`\$\{(?:[A-Za-z0-9_.-]+:[^}]*|[A-Z][A-Z0-9_]*)\}`)

// environment matches placeholders that outboxcdc supports as well.
var environment = regexp.MustCompile(`^\$\{env:[^}:]+\}$`)

// foreign is the first placeholder in a value that outboxcdc does not support; "" if there is none.
func foreign(value string) string {
	for _, p := range placeholder.FindAllString(value, -1) {
		if !environment.MatchString(p) {
			return p
		}
	}
	return ""
}

// urlPart returns an option for the connection string. For a value with a placeholder it returns a host name that
// cannot exist (RFC 2606), because a URL would encode the placeholder; postgres replaces the host name if outboxcdc
// supports the placeholder.
func (c *conversion) urlPart(option string) string {
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

// placeholders notes the converted options whose values are not in the file.
func (c *conversion) placeholders() {
	for _, name := range slices.Sorted(maps.Keys(c.props)) {
		first, unknown := placeholder.FindString(c.props[name]), foreign(c.props[name])
		switch {
		case !c.used[name] || first == "" || strings.Contains(name, "password"):
		case unknown == "":
			c.note(name, "%s is read from the environment of outboxcdc: set the variable", first)
		default:
			c.note(name, "%s stands for a value that is not in the file: write the value into the configuration, or ${file:/path} for the whole content of a file", unknown)
		}
	}
}
