package fromdebezium

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// placeholder is a value that Connect or Debezium Server resolves when it starts (a ConfigProvider's ${file:name:key}, or ${NAME}).
var placeholder = regexp.MustCompile(`\$\{(?:[A-Za-z0-9_.-]+:[^}]*|[A-Z][A-Z0-9_]*)\}`)

// environment is a placeholder that our configuration has, too.
var environment = regexp.MustCompile(`^\$\{env:[^}:]+\}$`)

// named takes an option that becomes a part of the connection string. A name that cannot exist stands for a placeholder.
func (c *conversion) named(option string) string {
	value := c.get(option)
	if !placeholder.MatchString(value) {
		return value
	}
	name := strings.TrimPrefix(option, "database.") + ".invalid"
	if environment.MatchString(value) {
		c.replaced[name] = value
	}
	return name
}

// placeholders notes the options that were converted with a value that is not in the file.
func (c *conversion) placeholders() {
	for _, name := range slices.Sorted(maps.Keys(c.props)) {
		value := placeholder.FindString(c.props[name])
		switch {
		case !c.used[name] || value == "" || strings.Contains(name, "password"):
		case environment.MatchString(value):
			c.note(name, "%s is read from the environment of outboxcdc: set the variable there", value)
		default:
			c.note(name, "%s stands for a value that is not in the file: write the value into the configuration, or ${file:/path} for the whole content of a file", value)
		}
	}
}
