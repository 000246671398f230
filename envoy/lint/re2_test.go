package lint

import "testing"

// TestProgramSizeIsThatOfRE2 holds the estimate against what the releases
// said: Envoy 1.36.4 and 1.38.3, and 1.39.3 and 1.40.0, with
// re2.max_program_size.warn_level 0.
func TestProgramSizeIsThatOfRE2(t *testing.T) {
	for _, c := range []struct {
		expression   string
		older, newer int
	}{
		{"(x-weir|x-ratelimit|x-should-retry|retry-after|ratelimit|content-type|grpc-retry).*", 82, 76},
		{"(x-weir-|x-ratelimit-|ratelimit|retry-after|content-|grpc-|www-auth|endpoint-load-metrics).*|x-should-retry|x-envoy-ratelimited|accept-encoding|authorization|traceparent|tracestate", 167, 161},
		{"(x-weir-|x-ratelimit-|ratelimit|retry-after|content-|grpc-|www-auth|endpoint-load-metrics).*|x-should-retry|x-envoy-ratelimited|accept-encoding|authorization", 151, 145},
		{"x-weir-.*|authorization", 33, 27},
		{"x-(weir|ratelimit)-.*|x-should-retry|retry-after.*|ratelimit.*|content-type|grpc-retry.*", 111, 87},
		{"(x-weir-.*|x-ratelimit-.*|x-should-retry|retry-after.*|ratelimit.*|content-type|grpc-retry-pushback-ms|www-authenticate)", 140, 116},
		{"retry-after.*|x-weir-.*|x-ratelimit-.*|x-should-retry|grpc-.*|content-.*|www-.*", 115, 79},
		{"/v1/(chat/completions|completions|embeddings|models)", 52, 52},
		{"a", 5, 5}, {"abc", 7, 7}, {"abcdefghij", 14, 14}, {".*", 12, 6}, {".", 12, 6}, {"a.*", 13, 7}, {"[a-z]+", 6, 6}, {"[a-z0-9-]*", 7, 7},
		{"(a|b|c)", 7, 7}, {"(abc|abd|xyz)", 12, 12}, {"a.*|b.*", 24, 12}, {"a.*|b.*|c.*", 34, 16}, {"^(retry-after|x-ok)$", 19, 19},
		{"(foo|bar).*", 20, 14}, {"foo.*|bar.*|baz.*", 38, 20}, {`\d+`, 6, 6}, {`\w+`, 8, 8}, {"[^a]*", 12, 6}, {"[^/]+/[^/]+", 23, 11},
		{"a{10}", 14, 14}, {"(ab){5}", 24, 24}, {"a?b?c?", 10, 10}, {"x.*y.*z", 23, 11}, {`\s*`, 7, 7}, {"(?i)retry-after", 15, 15}, {"(?i:x-weir).*", 18, 12},
		{"é+", 7, 7}, {"[é-ü]", 6, 5}, {"/v[0-9]+/.*", 17, 11}, {"(?:a|b)*c", 6, 6}, {"a|ab|abc", 9, 9}, {"foo|foobar|foobaz", 12, 12}, {"[a-c]|[d-f]", 5, 5},
		{"a.b", 14, 8}, {"[[:alpha:]]+", 6, 6}, {"x-weir-.*", 19, 13}, {"x-.*", 14, 8}, {"a{2,5}", 12, 12}, {"(?s).*", 11, 6}, {"(?s)a.*b", 13, 7},
	} {
		older, newer := programSize(c.expression, true), programSize(c.expression, false)
		if older != c.older || newer != c.newer {
			t.Errorf("%s: %d and %d, Envoy says %d and %d", c.expression, older, newer, c.older, c.newer)
		}
	}
}
