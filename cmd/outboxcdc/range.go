package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
)

func addRangeFlags(f *pflag.FlagSet, since, until *string) {
	f.StringVar(since, "since", "", "only rows whose created_at is not before this time: 24h (ago), 2026-11-24, 2026-11-24T22:00 or RFC 3339")
	f.StringVar(until, "until", "", "only rows whose created_at is before this time, written like --since")
}

func addAlsoFlag(f *pflag.FlagSet, also *[]string) {
	f.StringArrayVar(also, "also-topic", nil, "also look for records in this topic, to which the events were routed before; may be repeated")
}

// allMissing says about the topics of which nine of ten judged rows are missing what else may be the reason.
func allMissing(res *audit.Result, say func(string)) {
	for _, topic := range slices.Sorted(maps.Keys(res.ByTopic)) {
		if n := res.ByTopic[topic]; topic != "" && n.Missing >= 10 && n.Missing*10 >= n.Judged*9 {
			say(fmt.Sprintf("%d of %d rows of topic %s are missing: if these events were routed to another topic before, name it with --also-topic", n.Missing, n.Judged, topic))
		}
	}
}

// timeRange reads --since and --until.
func timeRange(since, until string, now time.Time) (r outboxtable.Range, err error) {
	if r.Since, err = parseTime("--since", since, now); err != nil {
		return r, err
	}
	if r.Until, err = parseTime("--until", until, now); err != nil {
		return r, err
	}
	if !r.Since.IsZero() && !r.Until.IsZero() && !r.Since.Before(r.Until) {
		return r, usageError(fmt.Errorf("--since %s is not before --until %s", since, until))
	}
	return r, nil
}

// parseTime reads a time, or how long ago it was; "": none. Times without a zone are local.
func parseTime(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if ago, err := time.ParseDuration(days + "h"); err == nil && ago > 0 {
			return now.Add(-24 * ago), nil
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usageError(fmt.Errorf("%s %s: write how long ago, such as 24h or 7d, or a time, such as 2026-11-24T22:00 or 2026-11-24T22:00:00Z", flag, text))
}
