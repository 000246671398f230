package lint

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Release is a minor release of Envoy 1: 36 for 1.36. 0 = all supported.
type Release uint8

// The supported releases.
const (
	Oldest Release = 36
	Newest Release = 40
)

// String is "1.36"; of 0 "1.36 to 1.40".
func (r Release) String() string {
	if r == 0 {
		return fmt.Sprintf("1.%d to 1.%d", Oldest, Newest)
	}
	return fmt.Sprintf("1.%d", r)
}

// ParseRelease reads 1.36, also with a patch number. "" is 0.
func ParseRelease(s string) (Release, error) {
	if s == "" {
		return 0, nil
	}
	parts := strings.Split(strings.TrimPrefix(s, "v"), ".")
	if len(parts) == 2 || len(parts) == 3 {
		if n, err := strconv.ParseUint(parts[1], 10, 8); err == nil && parts[0] == "1" && Release(n) >= Oldest && Release(n) <= Newest {
			return Release(n), nil
		}
	}
	return 0, fmt.Errorf("release %q: must be one of 1.%d to 1.%d", s, Oldest, Newest)
}

// before is whether the file has to work with a release older than r.
func (o Options) before(r Release) bool {
	if o.Release == 0 {
		return r > Oldest
	}
	return o.Release < r
}

//go:embed releases.txt
var releasesText string

// since tells which release brought a message ("M") or a field ("M f").
var since = sync.OnceValue(func() map[string]Release {
	m := map[string]Release{}
	for line := range strings.Lines(releasesText) {
		line = strings.TrimSpace(line)
		rel, name, ok := strings.Cut(line, " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if r, err := ParseRelease(rel); err == nil {
			m[name] = r
		}
	}
	return m
})

// checkSince reports a name that a release in question does not have yet.
func (l *linter) checkSince(name, shown string, p at) {
	if r, ok := since()[name]; ok {
		l.checkRelease(r, shown, p)
	}
}

// checkRelease reports what came with release r where an older one is in
// question; r = 0 was always there.
func (l *linter) checkRelease(r Release, shown string, p at) {
	if r == 0 || !l.before(r) {
		return
	}
	severity, which := Error, "Envoy "+l.Release.String()
	if l.Release == 0 {
		severity, which = Warning, "Envoy before "+r.String()
	}
	l.add(severity, "release", p, fmt.Sprintf("%s does not know %s and refuses to start", which, shown),
		fmt.Sprintf("leave it out, or use Envoy %s or newer and say so with --release", r))
}
