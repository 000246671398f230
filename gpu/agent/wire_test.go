package agent

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/gpu"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// Every figure of gpu.Card has a field, and comes through the wire as it was.
func TestWireCarriesEveryFigure(t *testing.T) {
	fields := Fields()
	var c gpu.Card
	kinds := reflect.TypeFor[gpu.Card]()
	figures := 0
	for i := range kinds.NumField() {
		if kinds.Field(i).Type == reflect.TypeFor[gpu.Value]() {
			figures++
		}
	}
	if figures != len(fields) {
		t.Errorf("gpu.Card has %d figures, the wire %d", figures, len(fields))
	}
	c = gpu.Card{ID: "GPU-1", Host: "node", Index: "3", Instance: "2", Slices: 3, XIDAt: time.Unix(1_700_000_000, 5000).UTC()}
	seen := map[*gpu.Value]bool{}
	for i, f := range fields {
		v := f.Of(&c)
		if seen[v] {
			t.Errorf("%s is the figure of another field too", f.Name)
		}
		seen[v] = true
		*v = gpu.Some(f.Top / float64(i+2))
	}
	raw, err := proto.Marshal(Encode(&c, fields))
	if err != nil {
		t.Fatal(err)
	}
	var w gpuv1.Card
	if err := proto.Unmarshal(raw, &w); err != nil {
		t.Fatal(err)
	}
	if got := decode(&w, fields); got != c {
		t.Errorf("%+v came as %+v", c, got)
	}
	if got := decode(Encode(&gpu.Card{ID: "GPU-1"}, fields), fields); got != (gpu.Card{ID: "GPU-1"}) {
		t.Errorf("a card without figures came as %+v", got)
	}
}

// When an XID occurred is told by weir's clock, whatever the agent's shows; a
// time that is none, or of no error, is left out.
func TestWhenAnXIDOccurred(t *testing.T) {
	at, theirs := time.Unix(1_700_000_000, 0), time.Unix(5_000, 0)
	for name, tt := range map[string]struct {
		xid  float64
		sent *timestamppb.Timestamp
		want time.Time
	}{
		"a minute ago":          {79, timestamppb.New(theirs.Add(-time.Minute)), at.Add(-time.Minute)},
		"after the look":        {79, timestamppb.New(theirs.Add(time.Minute)), at},
		"not told":              {79, nil, time.Time{}},
		"looked at no time":     {79, timestamppb.New(theirs), time.Time{}},
		"no error":              {0, timestamppb.New(theirs), time.Time{}},
		"no time":               {79, &timestamppb.Timestamp{Seconds: 1 << 62}, time.Time{}},
		"before there was time": {79, &timestamppb.Timestamp{Seconds: -60_000_000_000}, at.Add(-time.Duration(math.MaxInt64))},
	} {
		s, err := New(Config{Name: "node", Address: "unix:/nowhere"})
		if err != nil {
			t.Fatal(err)
		}
		w := &gpuv1.Snapshot{Sequence: 1, Time: timestamppb.New(theirs), Cards: []*gpuv1.Card{{Id: "a", Xid: &tt.xid, XidTime: tt.sent}}}
		if name == "looked at no time" {
			w.Time = nil
		}
		s.hear(w, at)
		got, err := s.inbox.Take(t.Context())
		if err != nil || len(got.sample.Cards) != 1 || !got.sample.Cards[0].XIDAt.Equal(tt.want) {
			t.Errorf("%s: %+v, %v; want %v", name, got.sample, err, tt.want)
		}
		_ = s.Close()
	}
}

func TestJudge(t *testing.T) {
	c := gpu.Card{
		Util: gpu.Some(1.5), Active: gpu.Some(math.NaN()), SM: gpu.Some(math.Inf(1)), Tensor: gpu.Some(-0.1), DRAM: gpu.Some(1),
		MemoryUsed: gpu.Some(140737488355328 * 2), Power: gpu.Some(700), XID: gpu.Some(0),
	}
	left := Judge(&c, Fields())
	want := gpu.Card{DRAM: gpu.Some(1), Power: gpu.Some(700), XID: gpu.Some(0)}
	if c != want || left[gpu.FaultNumber] != 2 || left[gpu.FaultRange] != 3 {
		t.Errorf("%+v left out by kind %v", c, left)
	}
}

func TestSampleOfCards(t *testing.T) {
	some := gpu.Some
	one := func(id, instance string, util, active, sm float64) *gpuv1.Card { // below 0: absent
		c := gpu.Card{ID: id, Index: "0", Host: "n", Instance: instance}
		for v, x := range map[*gpu.Value]float64{&c.Util: util, &c.Active: active, &c.SM: sm} {
			if x >= 0 {
				*v = some(x)
			}
		}
		return Encode(&c, Fields())
	}
	sized := func(slices uint32, c *gpuv1.Card) *gpuv1.Card { c.Slices = slices; return c }
	near := func(a, b gpu.Value) bool { return a.OK == b.OK && math.Abs(a.V-b.V) < 1e-9 }
	for name, tt := range map[string]struct {
		cards        []*gpuv1.Card
		match        map[string]string
		util, active gpu.Value
		gpus, cardsN int
		dropped      int
	}{
		"two GPUs":                   {[]*gpuv1.Card{one("a", "", 0.2, -1, -1), one("b", "", 0.6, -1, -1)}, nil, some(0.4), gpu.Value{}, 2, 2, 0},
		"one of them matches":        {[]*gpuv1.Card{one("a", "", 0.2, -1, -1), one("b", "", 0.6, -1, -1)}, map[string]string{"UUID": "b", "GPU_I_ID": ""}, some(0.6), gpu.Value{}, 1, 1, 0},
		"none matches":               {[]*gpuv1.Card{one("a", "", 0.2, -1, -1)}, map[string]string{"Hostname": "m"}, gpu.Value{}, gpu.Value{}, 0, 0, 0},
		"SMs before engines":         {[]*gpuv1.Card{one("a", "", 0.9, 0.8, 0.1)}, nil, some(0.9), some(0.1), 1, 1, 0},
		"a zero that stands still":   {[]*gpuv1.Card{one("a", "", 0, 0.8, -1)}, nil, some(0.8), some(0.8), 1, 1, 0},
		"MIG: instances, not parent": {[]*gpuv1.Card{one("a", "", 0, -1, -1), one("a", "1", -1, 0.5, -1), one("a", "2", -1, 0.25, -1)}, nil, some(0.375), some(0.375), 1, 3, 0},
		"MIG, by slices":             {[]*gpuv1.Card{sized(3, one("a", "1", -1, 0.5, -1)), sized(1, one("a", "2", -1, 0.1, -1))}, nil, some(0.4), some(0.4), 1, 2, 0},
		"MIG, beside a whole one":    {[]*gpuv1.Card{one("b", "", 0.8, -1, -1), sized(3, one("a", "1", -1, 0.1, -1))}, nil, some(0.59), gpu.Value{V: 0.1, OK: true}, 2, 2, 0},
		"MIG, the parent last":       {[]*gpuv1.Card{one("a", "1", -1, 0.5, -1), one("a", "", 0, -1, -1)}, nil, some(0.5), some(0.5), 1, 2, 0},
		"nothing known":              {[]*gpuv1.Card{one("a", "", -1, -1, -1)}, nil, gpu.Value{}, gpu.Value{}, 1, 1, 0},
		"twice, and nameless":        {[]*gpuv1.Card{one("a", "", 0.2, -1, -1), one("a", "", 0.9, -1, -1), one("", "", 0.9, -1, -1)}, nil, some(0.2), gpu.Value{}, 1, 1, 2},
	} {
		s, err := view{fields: Fields(), match: tt.match}.sample(&gpuv1.Snapshot{Cards: tt.cards})
		if err != nil || !near(s.Util, tt.util) || !near(s.Active, tt.active) || s.GPUs != tt.gpus || len(s.Cards) != tt.cardsN || s.Dropped != tt.dropped {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if _, err := (view{fields: Fields()}).sample(&gpuv1.Snapshot{Cards: make([]*gpuv1.Card, maxCards+1)}); err == nil {
		t.Error("a node of more GPUs than there are is believed")
	}
}

// spots names endpoints by card.
type spots struct {
	err   error
	named map[string]string
}

func (p *spots) Refresh() error { return p.err }
func (p *spots) Of(card *gpu.Card, labels ...string) gpu.Endpoints {
	return gpu.EndpointsOf(append(labels, p.named[card.ID])...)
}

// Cards carry the endpoint that the policy names; a file that cannot be read
// is counted, and what was known stays.
func TestEndpoints(t *testing.T) {
	p := &spots{named: map[string]string{"a": "chat"}}
	v := view{fields: Fields(), endpoints: p}
	w := &gpuv1.Snapshot{Cards: []*gpuv1.Card{{Id: "a"}, {Id: "b"}}}
	for _, err := range []error{nil, errors.New("gone")} {
		p.err = err
		s, _ := v.sample(w)
		if s.Cards[0].Endpoints != gpu.EndpointsOf("chat") || s.Cards[1].Endpoints != gpu.EndpointsOf() || s.Faults[gpu.FaultEndpoints] != 1 == (err != nil) {
			t.Errorf("with %v: %+v", err, s)
		}
	}
}

// Whatever an agent sends is in range or absent.
func FuzzSnapshot(f *testing.F) {
	for _, v := range []float64{0, 0.5, math.NaN(), 4294967295} {
		raw, _ := proto.Marshal(&gpuv1.Snapshot{Cards: []*gpuv1.Card{{Id: "GPU-1", Util: &v, Xid: &v, MemoryUsed: &v}, {Id: "GPU-1", Instance: "1", Active: &v}}, Dropped: 3})
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var w gpuv1.Snapshot
		if proto.Unmarshal(raw, &w) != nil {
			return
		}
		s, err := view{fields: Fields()}.sample(&w)
		if err != nil {
			return
		}
		for _, v := range []gpu.Value{s.Util, s.Active} {
			if v.OK && !(v.V >= 0 && v.V <= 1) {
				t.Fatalf("%+v", s)
			}
		}
		if s.Dropped < 0 || s.GPUs > len(s.Cards) {
			t.Fatalf("%+v", s)
		}
		for i := range s.Cards {
			if c := s.Cards[i]; Judge(&c, Fields()) != (gpu.Faults{}) || len(c.ID) > maxName || c.ID == "" {
				t.Fatalf("%+v", s.Cards[i])
			}
		}
	})
}

// Only what a message took longer than the quickest one counts, and a drift
// of the clocks is forgotten.
func TestTransit(t *testing.T) {
	start := time.Unix(1000, 0)
	var way transit
	for _, tt := range []struct{ at, sent, want time.Duration }{
		{0, 7 * time.Hour, 0},
		{time.Second, 7*time.Hour + time.Second, 0},
		{32 * time.Second, 7*time.Hour + 2*time.Second, 30 * time.Second}, // 30 s behind
		{32 * time.Second, 7*time.Hour + 31*time.Second, time.Second},
		{33 * time.Second, 7*time.Hour + 33*time.Second + 50*time.Millisecond, 0}, // quicker than all before
		{34 * time.Second, 7*time.Hour + 34*time.Second, 50 * time.Millisecond},
	} {
		if got := way.took(start.Add(tt.at), tt.sent); got != tt.want {
			t.Errorf("at %v, sent %v: %v, want %v", tt.at, tt.sent, got, tt.want)
		}
	}
	var drift transit // the sender's clock loses 1 ms each second
	for i := range 3600 {
		at := time.Duration(i) * time.Second
		if got := drift.took(start.Add(at), at-at/1000); got < 0 || got > 2*transitWindow/1000+time.Millisecond {
			t.Fatalf("at %v: %v", at, got)
		}
	}
}
