package nopanic_test

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/nopanic"
)

func TestCatch(t *testing.T) {
	for name, f := range map[string]func(){
		"a value": func() { panic("odd") },
		"an index": func() {
			var list []int
			_ = list[len(name(t))]
		},
		"an assertion": func() { var v any = 1; _ = v.(string) },
	} {
		err := call(f)
		if err == nil || !strings.HasPrefix(err.Error(), "panic: ") || !strings.Contains(err.Error(), "nopanic_test.TestCatch.func") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := call(func() {}); err != nil {
		t.Error(err)
	}
}

func name(t *testing.T) string { return t.Name() }

func call(f func()) (err error) {
	defer nopanic.Catch(&err)
	f()
	return nil
}
