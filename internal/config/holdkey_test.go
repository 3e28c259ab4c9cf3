package config

import (
	"strings"
	"testing"
)

// TestHoldKeyRemedies: what a policy that holds keys does not allow is refused, the error says where that policy is
// set, also if it is the default, and each of its remedies is accepted.
func TestHoldKeyRemedies(t *testing.T) {
	const byDefault = "or set poison.policy, whose default is hold_key, to dead_letter, stop or skip"
	conflicts := map[string]struct{ yaml, without, remedy string }{
		"poison.oversize":       {"poison: {oversize: cut", "poison: {oversize: stop", "write stop, "},
		"route.partition":       {"route: {partition: p}\npoison: {topic: letters", "poison: {topic: letters", "remove it, "},
		"route.position_header": {"route: {position_header: false}\npoison: {topic: letters", "route: {position_header: true}\npoison: {topic: letters", "write true, "},
	}
	for path, c := range conflicts {
		for _, test := range []struct {
			holds, other string // further settings of poison
			remedy       string
		}{
			{"", ", policy: dead_letter", byDefault},
			{"", ", policy: stop", byDefault},
			{"", ", policy: skip", byDefault},
			{", policy: hold_key", ", policy: stop", "or set poison.policy to dead_letter, stop or skip"},
			{", policy: stop, causes: {too_large: hold_key}", ", policy: stop, causes: {too_large: skip}", `or set "too_large" of poison.causes to dead_letter, stop or skip`},
			{", policy: stop, decisions: {e-1: hold_key}", ", policy: stop, decisions: {e-1: dead_letter}", `or set "e-1" of poison.decisions to dead_letter, stop or skip`},
			{
				", causes: {too_large: hold_key}", ", policy: stop, causes: {too_large: stop}",
				`or set "too_large" of poison.causes to dead_letter, stop or skip, and set poison.policy, whose default is hold_key, to dead_letter, stop or skip`,
			},
		} {
			_, err := loadText(c.yaml + test.holds + "}\n")
			if err == nil || !strings.Contains(err.Error(), path+": ") || !strings.Contains(err.Error(), c.remedy+test.remedy) {
				t.Errorf("%s%s: %v", c.yaml, test.holds, err)
			}
			for _, remedied := range []string{c.yaml + test.other, c.without + test.holds} {
				if _, err := loadText("delivery: {mode: at_least_once}\n" + remedied + "}\n"); err != nil {
					t.Errorf("%s: %v", remedied, err)
				}
			}
		}
	}
}
