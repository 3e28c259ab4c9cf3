package fromdebezium

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// findRouter is the prefix of the options of the event router, "transforms.<name>."; "" if there is none.
func findRouter(props map[string]string) string {
	for _, name := range splitList(props["transforms"]) {
		if prefix := "transforms." + name + "."; simpleName(props[prefix+"type"]) == "EventRouter" {
			return prefix
		}
	}
	return ""
}

// simpleName is the name of a class without its package, which Connect accepts as well.
func simpleName(class string) string {
	return class[strings.LastIndexAny(class, ".$")+1:]
}

// chain reads the transformations. Another transformation than the event router may change, drop or reroute records, so
// an unknown one is an error.
func (c *conversion) chain(ignore bool) error {
	if c.smt = findRouter(c.props); c.smt == "" {
		return errors.New("transforms names no io.debezium.transforms.outbox.EventRouter: this connector does not use the outbox event router")
	}
	c.used[c.smt+"type"] = true
	before := true
	var unknown []string
	for _, name := range splitList(c.get("transforms")) {
		prefix := "transforms." + name + "."
		kind := simpleName(c.props[prefix+"type"])
		switch {
		case prefix == c.smt:
			before = false
			continue
		case kind == "RegexRouter" && before:
			c.note(prefix+"type", "not converted: the event router sets the topic after it")
		case kind == "RegexRouter" && c.renamed == nil && c.get(prefix+"predicate") == "":
			c.renamed = &rename{option: prefix + "regex", regex: c.get(prefix + "regex"), with: c.get(prefix + "replacement")}
			c.used[prefix+"type"], c.used[prefix+"replacement"] = true, true
			continue
		case ignore:
			c.note(prefix+"type", "ignored because of --ignore-transforms: there is no counterpart")
		default:
			unknown = append(unknown, name+" ("+cmp.Or(c.props[prefix+"type"], "no type")+")")
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("transforms: %s: there is no counterpart, and without the transformation the records may differ; "+
			"if the records of the outbox do not depend on it, repeat the command with --ignore-transforms", strings.Join(unknown, ", "))
	}
	return nil
}

// rename is a RegexRouter after the event router (org.apache.kafka.connect.transforms.RegexRouter): a topic that the
// expression matches as a whole becomes the replacement.
type rename struct{ option, regex, with string }

// cutLiterals removes the literal texts before and after the aggregate type from an expression for topics. A dot that
// is not escaped matches a dot of the texts.
func cutLiterals(regex, before, after string) (rest string, ok bool) {
	regex = strings.TrimSuffix(strings.TrimPrefix(regex, "^"), "$")
	if rest, ok = strings.CutPrefix(regex, regexp.QuoteMeta(before)); !ok {
		rest, ok = strings.CutPrefix(regex, before)
	}
	if ok {
		short, escaped := strings.CutSuffix(rest, regexp.QuoteMeta(after))
		if !escaped {
			short, ok = strings.CutSuffix(rest, after)
		}
		rest = short
	}
	// A quantifier at the start would belong to the text before, and an alternative to the whole expression.
	return rest, ok && rest != "" && !strings.ContainsAny(rest[:1], "*+?{") && !alternatives(rest)
}

// alternatives reports whether an expression has, or may have, a | outside of groups and classes.
func alternatives(regex string) bool {
	groups, classes := 0, 0
	for i := 0; i < len(regex); i++ {
		switch c := regex[i]; {
		case c == '\\':
			if i++; i < len(regex) && regex[i] == 'Q' { // a quotation, whose end is not searched
				return true
			}
		case c == '[':
			classes++
		case c == ']':
			classes = max(0, classes-1)
		case classes > 0: // other characters are literal in a class
		case c == '(':
			groups++
		case c == ')':
			groups--
		case c == '|' && groups == 0:
			return true
		}
	}
	return false
}

// matchAll are expressions that match every type.
var matchAll = []string{"(.*)", ".*", "(.+)", ".+"}

// renameTopic writes the topic that results from the event router, which adds a text before and after the type, and the
// RegexRouter after it.
func (c *conversion) renameTopic(before, after string) error {
	r := c.renamed
	with, err := replacement(r.with)
	if err != nil {
		return fmt.Errorf("%s: %w", r.option, err)
	}
	if regex := strings.TrimSuffix(strings.TrimPrefix(r.regex, "^"), "$"); regex == "(.*)" || regex == "(.+)" {
		// Groups 0 and 1 are the whole topic.
		with = strings.ReplaceAll(strings.ReplaceAll(with, "${0}", before+"${0}"+after), "${1}", before+"${1}"+after)
		return c.replace(r.option, "(.*)", with, true)
	}
	rest, ok := cutLiterals(r.regex, before, after)
	if !ok || strings.Contains(with, "${0}") {
		return fmt.Errorf("%s: RegexRouter after the event router is converted only if its expression has the event router's %q, or is (.*); "+
			"write route.topic or route.replace yourself, and repeat the command with --ignore-transforms", r.option, before+"…"+after)
	}
	return c.replace(r.option, rest, with, slices.Contains(matchAll, rest))
}

// replace writes route.replace. all says that the expression matches every type.
func (c *conversion) replace(option, regex, with string, all bool) error {
	if err := checkGroups(regex, with); err != nil {
		return fmt.Errorf("%s: %w", option, err)
	}
	c.line(1, "topic", "{aggregate_type}")
	fmt.Fprintf(&c.yaml, "  replace: {regex: %s, with: %s}\n", strconv.Quote(regex), strconv.Quote(with))
	if c.renamed != nil && !all {
		c.line(1, "unmatched", "poison")
		c.note(option, "a type that the expression does not match is a poison event (route.unmatched); RegexRouter does not change its topic")
	}
	if _, err := regexp.Compile(regex); err != nil {
		c.note(option, "rewrite the expression, because RE2 does not support it: %v", err)
	}
	if strings.Contains(regex, "&&") {
		c.note(option, "if && is an intersection of classes, rewrite the expression: in RE2 it means two characters")
	}
	return nil
}

// checkGroups returns an error if the expression does not have a group of the replacement. In Java the first row would
// fail.
func checkGroups(regex, with string) error {
	re, err := regexp.Compile(regex)
	if err != nil {
		return nil // replace adds a note
	}
	for _, m := range group.FindAllStringSubmatch(with, -1) {
		if m[1] == "" { // $$
			continue
		}
		if n, err := strconv.Atoi(m[1]); err == nil && n <= re.NumSubexp() || err != nil && re.SubexpIndex(m[1]) >= 0 {
			continue
		}
		return fmt.Errorf("the replacement %q names the group %s, which the expression %q does not have", with, m[1], regex)
	}
	return nil
}

var group = regexp.MustCompile(`\$(?:\$|\{([^}]*)\})`)
