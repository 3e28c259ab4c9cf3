package router

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// OIDs of types in pg_type, which are the same on every server.
const (
	int8OID        = 20
	int2OID        = 21
	int4OID        = 23
	textOID        = 25
	varcharOID     = 1043
	timestampOID   = 1114
	timestamptzOID = 1184
	numericOID     = 1700
	uuidOID        = 2950
)

var (
	errTime  = errors.New("is no time that Kafka can hold")
	errRange = errors.New("is before 1970 or after the year 2261")
)

// millis converts a timestamp as printed with DateStyle ISO and TimeZone UTC, or a number since 1970, to
// milliseconds, truncated.
func millis(text []byte, oid uint32) (ms int64, err error) {
	switch oid {
	case timestamptzOID, timestampOID:
		ms, err = calendarMillis(string(text), oid == timestamptzOID)
	default:
		ms, err = epochMillis(string(text))
	}
	if ms >= timesEnd {
		return 0, errRange
	}
	return ms, err
}

// timesEnd is 2262-01-01 in milliseconds. The Kafka client counts in nanoseconds, which cannot represent later times:
// 9999-12-31 would be sent as a time before 1970, and brokers would accept it.
const timesEnd = 9_214_646_400_000

// epochMillis converts a number since 1970 to milliseconds. The size of the integral part decides the unit: seconds,
// milliseconds or microseconds.
func epochMillis(s string) (int64, error) {
	whole, fraction, _ := strings.Cut(s, ".") // numeric is printed without an exponent
	n, err := strconv.ParseInt(whole, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && s[0] == '-':
		return 0, errRange
	case err != nil: // NaN, Infinity
		return 0, errTime
	case n < secondsBelow:
		ms, err := strconv.ParseUint((fraction + "000")[:3], 10, 16)
		if err != nil {
			return 0, errTime
		}
		return n*1000 + int64(ms), nil
	case n < millisBelow:
		return n, nil
	case n < microsBelow:
		return n / 1000, nil
	}
	return 0, errRange
}

// Seconds below secondsBelow reach to the year 5138; milliseconds of at least secondsBelow begin in March 1973.
const (
	secondsBelow = 100_000_000_000
	millisBelow  = secondsBelow * 1000
	microsBelow  = millisBelow * 1000
)

func calendarMillis(s string, zoned bool) (int64, error) {
	layout := "2006-01-02 15:04:05.999999"
	if zoned {
		layout += "-07" // the connection's time zone is UTC
	}
	t, err := time.Parse(layout, s)
	if err != nil { // infinity, BC, years of more than four digits
		return 0, errTime
	}
	if ms := t.UnixMilli(); ms >= 0 {
		return ms, nil
	}
	return 0, errRange
}

// partitionNumber parses the value of a partition column.
func partitionNumber(text []byte) (int32, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return -1, false
	}
	return int32(n), true
}
