package body

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/weirproxy/weir/policy"
)

// Bodies that are made to take long: each byte is read a few times, whatever
// the nesting, the names and the number of scopes. So what is held against a
// policy takes a small multiple of the reading.
func TestWorstBodies(t *testing.T) {
	const size = 1 << 20
	nest := func(top, name string) string {
		return `"` + top + `":` + strings.Repeat(`{"`+name+`":`, 60) +
			`[` + strings.Repeat(`1,`, size/2) + `1]` + strings.Repeat(`}`, 60)
	}
	params := scopes(t, "max_tokens<=100", "n=1", "temperature<=1", "top_p<=0.9")
	for name, rest := range map[string]string{
		"nested":            nest("a", "b"),
		"nested containers": nest("options", "options"),
		"many names":        manyNames(`"%x":0`, size),
		"escaped names":     manyNames(`"\u0061%x":0`, size),
		"small objects":     `"a":[` + strings.Repeat(`{"a":0},`, size/8) + `{}]`,
		"empty objects":     `"a":[` + strings.Repeat(`{},`, size/3) + `{}]`,
		"escapes":           `"a":"` + strings.Repeat(`\u0061`, size/6) + `"`,
		"prompts":           `"prompt":[` + strings.Repeat(`[1],`, size/4) + `[1]]`,
		"priorities":        `"options":[` + strings.Repeat(`{"priority":1},`, size/15) + `{}]`,
	} {
		data := []byte(`{"model":"m","messages":[],` + rest + `}`)
		start := time.Now()
		b, err := Parse(policy.OpenAIChat, data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		read := time.Since(start)
		if _, err := b.CheckParams(params, true, policy.RefuseUnknown); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cuts, _ := b.WithoutPriority()
		b.Rewrite(cuts...)
		if took := time.Since(start) - read; took > 30*read+100*time.Millisecond {
			t.Errorf("%s: %d bytes were read in %v and held against scopes in %v", name, len(data), read, took)
		}
	}
}

// manyNames is a list of objects, each with as many names as one may have.
func manyNames(member string, size int) string {
	object := "{" + manyMembers(member) + "}"
	return `"a":[` + strings.Repeat(object+",", size/len(object)) + object + `]`
}

func manyMembers(member string) string {
	var all strings.Builder
	for i := range MaxMembers {
		if i > 0 {
			all.WriteByte(',')
		}
		fmt.Fprintf(&all, member, i)
	}
	return all.String()
}

// A priority in more objects than any engine reads is refused, so that what
// waits for its pool stays small.
func TestManyPriorities(t *testing.T) {
	body := func(n int) string {
		return `{"model":"m","messages":[],"options":[` + strings.Repeat(`{"priority":1},`, n-1) + `{"priority":1}]}`
	}
	cuts, err := mustParse(t, policy.OpenAIChat, body(MaxPriorities)).WithoutPriority()
	if err != nil || len(cuts) != MaxPriorities {
		t.Errorf("%d taken out, %v", len(cuts), err)
	}
	b := mustParse(t, policy.OpenAIChat, body(MaxPriorities+1))
	if cuts, err = b.WithoutPriority(); err == nil || err.Status != 400 || err.Field != "options.priority" || len(cuts) > MaxPriorities {
		t.Errorf("%d taken out, %v; want a 400", len(cuts), err)
	}
}

// What is kept while a body is read is of the size of one object, however many
// there are.
func TestManyObjectsTakeLittleMemory(t *testing.T) {
	members := `"a":0,"b":0,"c":0,"d":0,"e":0,"f":0,"g":0,"h":0,"i":0,"j":0,"k":0,"l":0,"m":0,"o":0,"p":0,"q":0,"r":0,"s":0`
	data := []byte(`{"model":"m","messages":[],"v":[` + strings.Repeat("{"+members+"},", 10_000) + `{}]}`)
	if _, err := Parse(policy.OpenAIChat, []byte(`{"a":[{`+members+`},{`+members+`,"r":1}]}`)); err == nil || err.Code != CodeDuplicate {
		t.Errorf("a name twice behind an object of the same names: %v", err)
	}
	allocs := testing.AllocsPerRun(2, func() {
		if _, err := Parse(policy.OpenAIChat, data); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 100 {
		t.Errorf("%d bytes of body took %v allocations", len(data), allocs)
	}
}

// What is kept of a body of many fields beside its bytes is told.
func TestIndex(t *testing.T) {
	b := mustParse(t, policy.JSON, "{"+manyMembers(`"%x":0`)+"}")
	if n := int(unsafe.Sizeof(field{})); n != fieldBytes || b.Index() < MaxMembers*n || b.Index() > 4*MaxMembers*n {
		t.Errorf("%d bytes for %d fields of %d", b.Index(), len(b.fields), n)
	}
}
