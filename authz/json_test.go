package authz

import "testing"

func TestFold(t *testing.T) {
	for _, group := range [][]string{
		{"tenant", "Tenant", "TENANT"}, {"k", "K", "\u212a"}, {"s", "S", "ſ"}, {"σ", "ς", "Σ"}, {"é", "É"}, {"å", "Å", "\u212b"}, {"1-x", "1-X"},
	} {
		for _, s := range group {
			if fold(s) != fold(group[0]) {
				t.Errorf("%q folds to %q, %q to %q", s, fold(s), group[0], fold(group[0]))
			}
		}
	}
	if fold("tenant") != "tenant" || fold("Tenant") != "tenant" {
		t.Error("ASCII does not fold to lower case")
	}
	if fold("a") == fold("b") || fold("é") == fold("e") {
		t.Error("different names fold to one")
	}
}

func TestDecodeObjectTwins(t *testing.T) {
	for doc, ok := range map[string]bool{
		`{"a":1,"b":2}`: true, `{"A":1,"B":2}`: true, `{"a":1,"A":2}`: false, `{"A":1,"a":2}`: false, `{"A":1,"A":2}`: false, `{"aB":1,"Ab":2}`: false,
		`{"x":{"a":1},"y":{"a":1}}`: true, ` {"a":1} `: true, `{"a":1}x`: false, `[]`: false, `{"a":01}`: false, `{"a":1,}`: false, `{"a" 1}`: false,
	} {
		if _, err := decodeObject([]byte(doc)); (err == nil) != ok {
			t.Errorf("%s: %v", doc, err)
		}
	}
}
