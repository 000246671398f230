package buswire

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/breaker"
)

func good() breaker.Opinion {
	return breaker.Opinion{
		Replica: "weir-0", Breaker: "chat", State: breaker.Hard, Level: breaker.Hard, Requests: 40, Failures: 21,
		Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Left: 5 * time.Second, Seq: 1_790_000_000_000_001, TTL: 15 * time.Second,
	}
}

const text = `{"v":1,"replica":"weir-0","breaker":"chat","kind":"http","state":"hard","level":"hard","requests":40,"failures":21,"since":"2026-01-02T03:04:05Z","left":5000000000,"seq":1790000000000001,"ttl":15000000000}`

// The form is what the package says, byte by byte: releases talk to each other.
func TestForm(t *testing.T) {
	raw, err := Encode(good())
	if err != nil || string(raw) != text {
		t.Fatalf("%v:\n%s\nwant\n%s", err, raw, text)
	}
	if o, err := Decode([]byte(text)); err != nil || !reflect.DeepEqual(o, good()) {
		t.Fatalf("%v: %+v, want %+v", err, o, good())
	}
}

// What is not in the one form is no word.
func TestGarbage(t *testing.T) {
	swap := func(old, now string) string { return strings.Replace(text, old, now, 1) }
	for name, raw := range map[string]string{
		"empty": "", "null": "null", "number": "7", "cut": text[:len(text)-1], "twice": text + text, "array": "[" + text + "]",
		"html": "<html>502 Bad Gateway</html>", "no version": swap(`"v":1,`, ``), "null version": swap(`"v":1`, `"v":null`),
		"spaces": " " + text, "line end": text + "\n", "unknown key": swap(`"v":1,`, `"v":1,"x":2,`),
		"key twice": swap(`"failures":21`, `"failures":21,"failures":21`), "case": swap(`"failures"`, `"Failures"`),
		"unknown kind": swap(`"http"`, `"ftp"`), "unknown state": swap(`"state":"hard"`, `"state":"ajar"`),
		"unknown level": swap(`"level":"hard"`, `"level":"unknown"`), "closed at no level": strings.NewReplacer(`"state":"hard"`, `"state":"closed"`, `"level":"hard"`, `"level":"unknown"`).Replace(text), "more failures": swap(`21`, `41`), "negative": swap(`"requests":40`, `"requests":-1`),
		"float": swap(`40`, `40.0`), "text": swap(`40`, `"40"`), "no ttl": swap(`15000000000`, `0`), "seq": swap(`1790000000000001`, `9007199254740992`),
		"huge number": swap(`40`, `99999999999999999999`), "no time": swap(`2026-01-02T03:04:05Z`, `yesterday`), "zone": swap(`05Z`, `05+01:00`),
		"long name": swap(`chat`, strings.Repeat("x", breaker.MaxName+1)), "bad UTF-8": swap(`chat`, "\xff"), "escaped": swap(`chat`, `\u0063hat`),
		"long": strings.Repeat(" ", MaxBytes) + text,
	} {
		if o, err := Decode([]byte(raw)); err == nil || errors.Is(err, ErrVersion) || o != (breaker.Opinion{}) {
			t.Errorf("%s: %+v, %v; want garbage", name, o, err)
		}
	}
}

// A word of another release is told from garbage, whatever else it holds.
func TestOtherVersion(t *testing.T) {
	for _, raw := range []string{`{"v":2}`, strings.Replace(text, `"v":1`, `"v":2`, 1), `{"v":-1,"new":[]}`} {
		if _, err := Decode([]byte(raw)); !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %v, want ErrVersion", raw, err)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	o := good()
	o.Seq = 0
	if _, err := Encode(o); err == nil {
		t.Error("a word without a seq is written")
	}
	o = good()
	o.Breaker = "a\xffb"
	if _, err := Encode(o); err == nil {
		t.Error("a name that is not UTF-8 is written")
	}
}

// Every word that passes Check comes back as it was, in MaxBytes.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringN(1, 64, breaker.MaxName)
		o := breaker.Opinion{
			Replica: name.Draw(t, "replica"), Breaker: name.Draw(t, "breaker"), Kind: breaker.Kind(rapid.IntRange(0, 2).Draw(t, "kind")),
			State: breaker.State(rapid.IntRange(0, 3).Draw(t, "state")), Level: breaker.State(rapid.IntRange(1, 2).Draw(t, "level")),
			Requests: rapid.IntRange(0, 1<<40).Draw(t, "requests"), Left: time.Duration(rapid.Int64Min(0).Draw(t, "left")),
			Since: time.Unix(rapid.Int64Range(-6e10, 2e11).Draw(t, "since"), rapid.Int64Range(0, 1e9-1).Draw(t, "ns")).UTC(),
			Seq:   rapid.Uint64Range(1, breaker.MaxSeq).Draw(t, "seq"), TTL: time.Duration(rapid.Int64Range(1, int64(breaker.MaxTTL)).Draw(t, "ttl")),
		}
		o.Failures = rapid.IntRange(0, o.Requests).Draw(t, "failures")
		raw, err := Encode(o)
		if err != nil || len(raw) > MaxBytes {
			t.Fatalf("%+v: %v, %d bytes", o, err, len(raw))
		}
		if back, err := Decode(raw); err != nil || back != o {
			t.Fatalf("%v: %+v, want %+v", err, back, o)
		}
	})
	o := good()
	o.State, o.Level = breaker.Closed, 200
	if raw, err := Encode(o); err != nil {
		t.Error(err)
	} else if back, err := Decode(raw); err != nil || back.Level != breaker.Closed {
		t.Errorf("%+v, %v; want a level of no meaning to be closed", back, err)
	}
	o.Replica, o.Breaker = strings.Repeat("\x01", breaker.MaxName), strings.Repeat("<", breaker.MaxName)
	if raw, err := Encode(o); err != nil || len(raw) > MaxBytes {
		t.Errorf("the longest word: %v, %d bytes, want up to %d", err, len(raw), MaxBytes)
	}
}

// Whatever lies on a bus: no panic, and what is taken is in its one form.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(text))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"replica":"\ud800"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, err := Decode(raw)
		if err != nil {
			return
		}
		if back, err := Encode(o); err != nil || string(back) != string(raw) || o.Check() != nil {
			t.Errorf("%q became %+v, %q, %v", raw, o, back, err)
		}
	})
}

// 50 ms to 2 s, never less than half of it, and anew after Reset.
func TestBackoff(t *testing.T) {
	b := NewBackoff(1)
	for range 2 {
		for want := FirstPause; want <= 4*MaxPause; want *= 2 {
			top := min(want, MaxPause)
			if p := b.Pause(); p < top/2 || p > top {
				t.Errorf("%v, want %v..%v", p, top/2, top)
			}
		}
		b.Reset()
	}
}
