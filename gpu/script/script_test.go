package script_test

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/script"
	"github.com/weirproxy/weir/gpu/sourcetest"
)

func source(text string) func(*testing.T) gpu.Source {
	return func(t *testing.T) gpu.Source {
		t.Helper()
		c, err := script.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return script.New("script", c)
	}
}

// Q3
func TestContract(t *testing.T) {
	for name, good := range map[string]string{
		"card":   "points: [{at: 0s, util: 50%}]",
		"engine": "points: [{at: 0s, waiting: 3, kv: 0.5}]",
	} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, sourcetest.Makers{
				Good:    source(good),
				Broken:  source("points: [{at: 0s, fail: true}]"),
				Hanging: source("points: [{at: 0s, hang: true}]"),
				Strange: source("points: [{at: 0s, util: nan, kv: .NaN, waiting: nan}]"),
			})
		})
	}
}

func TestCurve(t *testing.T) {
	some, none := gpu.Some, gpu.Value{}
	s, err := script.Load("day", "testdata/day.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !s.Engine() || s.Name() != "day" {
		t.Errorf("Engine = %v, Name = %q", s.Engine(), s.Name())
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		for _, tt := range []struct {
			at   time.Duration
			want gpu.Sample
			err  error
		}{
			{0, gpu.Sample{Util: some(0.3), KV: some(0.2), Waiting: some(0), Running: some(3), GPUs: 4}, nil},
			{5 * time.Second, gpu.Sample{Util: some(0.6), KV: some(0.5), Waiting: some(6), Running: some(3), GPUs: 4}, nil},
			{10 * time.Second, gpu.Sample{Util: some(0.9), KV: some(0.8), Waiting: some(12), Running: none, GPUs: 4}, nil},
			{15 * time.Second, gpu.Sample{Util: some(0.9), KV: some(0.8), Waiting: some(12), GPUs: 4}, nil},
			{20 * time.Second, gpu.Sample{}, script.ErrScripted},
			{26 * time.Second, gpu.Sample{}, context.DeadlineExceeded},
			{30 * time.Second, gpu.Sample{GPUs: 4, Dropped: 2}, nil},
			{40 * time.Second, gpu.Sample{}, nil},
			{time.Hour, gpu.Sample{}, nil},
		} {
			time.Sleep(time.Until(start.Add(tt.at)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			got, err := s.Sample(ctx)
			cancel()
			if !errors.Is(err, tt.err) {
				t.Errorf("at %v: %v, want %v", tt.at, err, tt.err)
			}
			if err == nil {
				tt.want.Source, tt.want.At = "day", start.Add(tt.at)
			}
			if !close(got, tt.want) {
				t.Errorf("at %v: sample = %+v, want %+v", tt.at, got, tt.want)
			}
		}
	})
}

// close compares samples, utilisation to 1e-9.
func close(a, b gpu.Sample) bool {
	d := a.Util.V - b.Util.V
	a.Util.V = b.Util.V
	return reflect.DeepEqual(a, b) && d < 1e-9 && d > -1e-9
}

// Without interpolation values jump; a script that repeats starts again.
func TestStepsAndRepeat(t *testing.T) {
	c, err := script.Parse([]byte("repeat: true\npoints: [{at: 0s, util: 0.1}, {at: 10s, util: 0.9}, {at: 20s}]"))
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[time.Duration]float64{0: 0.1, 9 * time.Second: 0.1, 10 * time.Second: 0.9, 20 * time.Second: 0.1, 31 * time.Second: 0.9} {
		got, err := c.At(at)
		if err != nil || got.Util != gpu.Some(want) || got.GPUs != 1 {
			t.Errorf("at %v: %+v, %v; want %v", at, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "script"},
		{"points: []", "must not be empty"},
		{"points: [{at: 1s}]", "the first point must be at 0s, got 1s"},
		{"points:\n- {at: 0s}\n- {at: 5s}\n- {at: 5s}\n", "line 4: at must be later than the point before (5s), got 5s"},
		{"points: [{at: 5}]", "at must be a duration"},
		{"points: [{at: 0s}, {util: 1}]", "point 2: at is missing"},
		{"points: [{at: -1s}]", "at must be a duration"},
		{"points: [{at: 0s, util: 30}]", `must be a ratio of 0..1, a percentage of 0%..100% or nan, got "30"`},
		{"points: [{at: 0s, util: 101%}]", "ratio"},
		{"points: [{at: 0s, kv: -0.1}]", "ratio"},
		{"points: [{at: 0s, kv: .inf}]", "ratio"},
		{"points: [{at: 0s, kv: much}]", "ratio"},
		{"points: [{at: 0s, waiting: -1}]", "number"},
		{"points: [{at: 0s, waiting: 1e9}]", "number"},
		{"points: [{at: 0s, waiting: [1]}]", "number"},
		{"points: [{at: 0s, utl: 1}]", "utl"},
		{"gpus: -1\npoints: [{at: 0s}]", "gpus must be in 0..1000000, got -1"},
		{"points: [{at: 0s}]\n---\npoints: []", "more than one document"},
		{strings.Repeat("#", 1<<20+1), "larger"},
	} {
		if _, err := script.Parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Parse(%.60q) = %v, want %q", tt.text, err, tt.want)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := script.Load("s", pipe); err == nil || !strings.Contains(err.Error(), "not a plain file") {
		t.Errorf("a pipe: %v", err) // a reload must not wait for its writer
	}
	if _, err := script.Load("s", "testdata/none.yaml"); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("Load of a missing file = %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("points: [{at: 0s, util: 50%}]"), int64(5))
	f.Add([]byte("interpolate: true\nrepeat: true\npoints: [{at: 0s, kv: .5}, {at: 1ns, kv: nan}]"), int64(1<<62))
	f.Fuzz(func(t *testing.T, text []byte, at int64) {
		c, err := script.Parse(text)
		if err != nil {
			return
		}
		s, err := c.At(time.Duration(at))
		if err == nil && !(s.Util.V >= 0 && s.Util.V <= 1 && s.KV.V >= 0 && s.KV.V <= 1 && s.Waiting.V >= 0) {
			t.Errorf("sample = %+v", s)
		}
	})
}
