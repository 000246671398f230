package watch

import (
	"bytes"
	"slices"
	"strings"
)

// readText reads the lines of Envoy's /stats:
//
//	cluster.chat.upstream_cx_active: 3
//
// Lines of other statistics are skipped; what is no number is counted.
func readText(text []byte, t *table, garbage *[numGarbage]uint64) {
	for len(text) > 0 {
		line := text
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			line, text = text[:end], text[end+1:]
		} else {
			text = nil
		}
		line = bytes.TrimSuffix(line, []byte("\r"))
		colon := bytes.LastIndexByte(line, ':')
		if colon < 0 {
			if len(line) > 0 {
				garbage[GarbageForm]++
			}
			continue
		}
		cluster, s := parts(line[:colon])
		if s == numStats || cluster == nil {
			continue
		}
		n, ok := number(bytes.TrimLeft(line[colon+1:], " "))
		if !ok {
			garbage[GarbageValue]++
			continue
		}
		t.put(cluster, nil, s, n)
	}
}

// number reads digits alone, up to most.
func number(b []byte) (int64, bool) {
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		if n = 10*n + int64(c-'0'); n > most {
			return 0, false
		}
	}
	return n, len(b) > 0
}

func sortTargets(t []Target) {
	slices.SortFunc(t, func(a, b Target) int {
		if c := strings.Compare(a.Node, b.Node); c != 0 {
			return c
		}
		return strings.Compare(a.URL, b.URL)
	})
}
