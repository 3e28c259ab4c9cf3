// Package human writes numbers for people.
package human

import (
	"fmt"
	"strings"
	"time"
)

// Size is a number of bytes, in the units of Postgres.
func Size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	value, name := float64(n), ""
	for _, name = range []string{"kB", "MB", "GB", "TB", "PB"} { // as Postgres calls them
		if value /= unit; value < unit {
			break
		}
	}
	return strings.Replace(fmt.Sprintf("%.1f %s", value, name), ".0 ", " ", 1)
}

// Count is n followed by the singular or the plural.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Duration is d, rounded, in one suitable unit.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	case d < 1000*24*time.Hour:
		return fmt.Sprintf("%.0f days", d.Hours()/24)
	}
	return "years"
}
