package policy

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// HoldMargin is what Envoy's message timeout exceeds the longest hold of a
// request by: the time to answer.
const HoldMargin = 500 * time.Millisecond

// holdRoom is the longest time Envoy waits for one answer of ours.
func (e *Envoy) holdRoom() time.Duration {
	if e.MaxMessageTimeout > 0 {
		return e.MaxMessageTimeout
	}
	return e.MessageTimeout
}

const scopeRule = "must be 1 to 64 of letters, digits and _ . : -"

var scopeName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)

func isScope(s string) bool { return scopeName.MatchString(s) }

// parseDuration reads a duration with units: 200ms, 1m30s. A bare 0 is taken
// only where zero says so. message is "" when the text is fine.
func parseDuration(s string, zero bool) (d time.Duration, message string) {
	if s == "0" {
		if zero {
			return 0, ""
		}
		return 0, "needs a unit: 0s"
	}
	digits := strings.TrimLeft(s, "+-")
	if strings.HasPrefix(s, "+") || digits == "" || digits[0] < '0' || digits[0] > '9' {
		return 0, "must be a duration such as 200ms, 5s or 1m30s"
	}
	if strings.Trim(digits, "0123456789.") == "" {
		return 0, "needs a unit: ms, s, m or h"
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, "must be a duration such as 200ms, 5s or 1m30s, below 292 years"
	}
	if d%time.Microsecond != 0 || d == 0 && strings.ContainsAny(digits, "123456789") {
		return 0, "must be whole microseconds"
	}
	return d, ""
}

// formatDuration writes what parseDuration reads, without empty parts.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

var percent = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?%$`)
var decimal = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
var integer = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// parseRatio reads 0.8 or 80%.
func parseRatio(s string) (r Ratio, ok bool) {
	if percent.MatchString(s) {
		f, err := strconv.ParseFloat(s[:len(s)-1], 64)
		return Ratio(f / 100), err == nil
	}
	f, ok := parseNumber(s)
	return Ratio(f), ok
}

// formatRatio writes a percentage where that reads back to the same value.
func formatRatio(r Ratio) string {
	s := strconv.FormatFloat(math.Round(float64(r)*1e4)/1e2, 'f', -1, 64) + "%"
	if back, ok := parseRatio(s); ok && back == r {
		return s
	}
	return formatNumber(float64(r))
}

// parseNumber reads a finite decimal number.
func parseNumber(s string) (float64, bool) {
	if !decimal.MatchString(s) {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil
}

func formatNumber(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// plainNumber is for sentences: without an exponent.
func plainNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

var byteSize = regexp.MustCompile(`^([0-9]+)(B|KiB|MiB|GiB)$`)

// parseBytes reads 4MiB. message is "" when the text is fine.
func parseBytes(s string) (n int64, message string) {
	m := byteSize.FindStringSubmatch(s)
	if m == nil {
		return 0, "must be a whole number with a unit: B, KiB, MiB or GiB"
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := byteUnit(m[2])
	if err != nil || n > math.MaxInt64/unit {
		return 0, "is out of range"
	}
	return n * unit, ""
}

func byteUnit(name string) int64 {
	switch name {
	case "KiB":
		return 1 << 10
	case "MiB":
		return 1 << 20
	case "GiB":
		return 1 << 30
	}
	return 1
}

// formatBytes writes the largest unit that leaves a whole number.
func formatBytes(n int64) string {
	for _, u := range []string{"GiB", "MiB", "KiB"} {
		if size := byteUnit(u); n != 0 && n%size == 0 {
			return strconv.FormatInt(n/size, 10) + u
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
