//go:build cgo && linux

package dcgm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/library"
)

// whole is what the shim says of a GPU without faults.
func whole(g int) gpu.Card {
	return gpu.Card{
		ID: fmt.Sprintf("GPU-%d", g), Host: "node", Index: fmt.Sprint(g),
		Util: gpu.Some(float64(40+g) / 100), Active: gpu.Some(0.5), SM: gpu.Some(0.25), Occupancy: gpu.Some(0.0625), Tensor: gpu.Some(0.125), DRAM: gpu.Some(0.375),
		MemoryUsed: gpu.Some(20 << 30), MemoryTotal: gpu.Some(80 << 30), PCIeSent: gpu.Some(1e9), PCIeReceived: gpu.Some(2e9),
		Power: gpu.Some(310.5), Temperature: gpu.Some(61), XID: gpu.Some(0), Clocks: gpu.Some(4),
	}
}

// part is what the shim says of an instance.
func part(g, i int) gpu.Card {
	return gpu.Card{
		ID: fmt.Sprintf("GPU-%d", g), Host: "node", Index: fmt.Sprint(g), Instance: fmt.Sprint(7 + i), Slices: 4 - i,
		Active: gpu.Some(0.5), SM: gpu.Some(0.75), Occupancy: gpu.Some(0.1875), Tensor: gpu.Some(0.125), DRAM: gpu.Some(0.375),
		MemoryUsed: gpu.Some(4 << 30), MemoryTotal: gpu.Some(9728 << 20),
	}
}

func same(t *testing.T, what string, got, want []gpu.Card) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d cards, want %d", what, len(got), len(want))
	}
	for i := range got {
		g, w := got[i], want[i]
		if w.Util.OK && g.Util.OK && g.Util.V-w.Util.V < 1e-12 && w.Util.V-g.Util.V < 1e-12 {
			g.Util = w.Util
		}
		if g != w {
			t.Errorf("%s: card %d\n is %+v\nwant %+v", what, i, g, w)
		}
	}
}

// TestFieldNumbers holds the table against the names of go-dcgm.
func TestFieldNumbers(t *testing.T) {
	want := []dcgm.Short{
		dcgm.DCGM_FI_DEV_GPU_UTIL, dcgm.DCGM_FI_DEV_FB_USED, dcgm.DCGM_FI_DEV_FB_TOTAL, dcgm.DCGM_FI_DEV_POWER_USAGE, dcgm.DCGM_FI_DEV_GPU_TEMP,
		dcgm.DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, dcgm.DCGM_FI_DEV_XID_ERRORS,
		dcgm.DCGM_FI_PROF_GR_ENGINE_ACTIVE, dcgm.DCGM_FI_PROF_SM_ACTIVE, dcgm.DCGM_FI_PROF_SM_OCCUPANCY, dcgm.DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, dcgm.DCGM_FI_PROF_DRAM_ACTIVE,
		dcgm.DCGM_FI_PROF_PCIE_TX_BYTES, dcgm.DCGM_FI_PROF_PCIE_RX_BYTES, dcgm.DCGM_FI_DEV_PCIE_TX_THROUGHPUT, dcgm.DCGM_FI_DEV_PCIE_RX_THROUGHPUT,
	}
	var got []dcgm.Short
	for _, f := range fields() {
		got = append(got, dcgm.Short(f.id))
	}
	if !slices.Equal(got, want) || uuidField != dcgm.DCGM_FI_DEV_UUID {
		t.Errorf("numbers %d, want %d", got, want)
	}
	if typeDouble != dcgm.DCGM_FT_DOUBLE || typeInt != dcgm.DCGM_FT_INT64 || typeTime != dcgm.DCGM_FT_TIMESTAMP || typeText != dcgm.DCGM_FT_STRING {
		t.Error("a type has another letter")
	}
	if !dcgm.IsInt64Blank(blankInt64) || dcgm.IsInt64Blank(blankInt64-1) || !dcgm.IsInt32Blank(blankInt32) || dcgm.IsInt32Blank(blankInt32-1) {
		t.Error("a blank has another number")
	}
}

// TestCards: two GPUs, one of them with MIG instances, all fields; instances
// come and go.
func TestCards(t *testing.T) {
	s := newShim(t)
	d := s.driver(Config{})
	same(t, "two GPUs", s.cards(d, 0), []gpu.Card{whole(0), whole(1)})
	s.fault("mig 1")
	mig := whole(1)
	mig.Util = gpu.Value{}
	same(t, "MIG", s.cards(d, 1), []gpu.Card{whole(0), mig, part(1, 0), part(1, 1)})
	s.fault()
	same(t, "MIG off", s.cards(d, 2), []gpu.Card{whole(0), whole(1)})
	if got := s.calls("watch"); !slices.Equal(got, []string{
		"watch 10 fields every 1000000 us", "watch 7 fields every 1000000 us", "watch 10 fields every 1000000 us", "watch 7 fields every 1000000 us",
		"watch 2 fields every 1000000 us", "watch 5 fields every 1000000 us"}) {
		t.Errorf("watches: %q", got)
	}
	if n := len(s.calls("unwatch")); n != 2 {
		t.Errorf("%d watches of instances ended, want 2", n)
	}
}

// TestOneFieldRefused: one field that boards refuse, or one board that
// differs, costs only itself (kempnerpulse#13, dcgm-exporter#657), and is told
// once.
func TestOneFieldRefused(t *testing.T) {
	s := newShim(t)
	s.fault("refuse-field -1 1004", "refuse-field 1 155", "refuse-field 1 1009")
	d := s.driver(Config{})
	a, b := whole(0), whole(1)
	a.Tensor, b.Tensor, b.Power = gpu.Value{}, gpu.Value{}, gpu.Value{}
	b.PCIeSent = gpu.Some(3e9) // by the old field
	for second := range 5 {
		same(t, "refused", s.cards(d, float64(second)), []gpu.Card{a, b})
	}
	if n := strings.Count(s.log.String(), "field=1004"); n != 1 {
		t.Errorf("field 1004 told %d times, want 1:\n%s", n, s.log.String())
	}
}

// TestFaultsOfValues: blanks, sentinels, statuses and nonsense of one field of
// one card are missing there and nowhere else.
func TestFaultsOfValues(t *testing.T) {
	s := newShim(t)
	s.fault("value 0 -1 203 i 9223372036854775794", "value 0 -1 1002 d 140737488355328", "value 0 -1 155 d nan",
		"value 0 -1 150 i 2147483632", "status 0 -1 252 -6", "value 1 -1 203 i 4294967295", "value 1 -1 230 i 79", "stamp 1 -1 230 1700000000500000", "value 1 -1 112 i 64")
	a, b := whole(0), whole(1)
	a.Util, a.SM, a.Power, a.Temperature, a.MemoryUsed = gpu.Value{}, gpu.Value{}, gpu.Value{}, gpu.Value{}, gpu.Value{}
	b.Util, b.XID, b.Clocks = gpu.Value{}, gpu.Some(79), gpu.Some(64)
	b.XIDAt = time.UnixMilli(1_700_000_000_500)
	same(t, "faults", s.cards(s.driver(Config{}), 0), []gpu.Card{a, b})
}

// TestGPUGone: 4 cards, then 3, then 4 again, without a restart
// (dcgm-exporter#348, #164).
func TestGPUGone(t *testing.T) {
	s := newShim(t)
	s.fault("gpus 4")
	d := s.driver(Config{})
	same(t, "four", s.cards(d, 0), []gpu.Card{whole(0), whole(1), whole(2), whole(3)})
	s.fault("gpus 4", "gone 2")
	same(t, "three", s.cards(d, 1), []gpu.Card{whole(0), whole(1), whole(3)})
	if !strings.Contains(s.log.String(), `level=ERROR msg="GPU is gone" gpu=2 left=3`) {
		t.Errorf("the loss is not told:\n%s", s.log.String())
	}
	s.fault("gpus 4")
	same(t, "four again", s.cards(d, 2), []gpu.Card{whole(0), whole(1), whole(2), whole(3)})
}

// TestBlanksEnd: blanks that last are watched anew after a minute, and are
// values again (DCGM#202).
func TestBlanksEnd(t *testing.T) {
	s := newShim(t)
	s.fault("gpus 1")
	d := s.driver(Config{})
	s.cards(d, 0)
	s.fault("gpus 1", "deaf")
	s.cards(d, 1)
	s.fault("gpus 1")
	for second := 2; second <= 61; second++ {
		if c := s.cards(d, float64(second))[0]; c.Util.OK || c.SM.OK || c.Power.OK {
			t.Fatalf("after %d s: %+v, want blanks", second, c)
		}
	}
	same(t, "watched anew", s.cards(d, 62), []gpu.Card{whole(0)})
	if n := len(s.calls("unwatch")); n != 2 {
		t.Errorf("%d unwatched, want 2", n)
	}
	s.cards(d, 63)
	if n := len(s.calls("watch")); n != 4 {
		t.Errorf("%d watches, want 4", n)
	}
}

// TestFrozenEngine: a host engine that stopped sampling gives no numbers
// (gpu-monitoring-tools#188).
func TestFrozenEngine(t *testing.T) {
	s := newShim(t)
	s.fault("gpus 1", "freeze")
	d := s.driver(Config{})
	same(t, "before", s.cards(d, 0), []gpu.Card{whole(0)})
	want := gpu.Card{ID: "GPU-0", Host: "node", Index: "0", XID: gpu.Some(0)}
	same(t, "frozen", s.cards(d, 5.1), []gpu.Card{want})
}

// TestManyBoards: 32 GPUs with instances need more groups than DCGM has left;
// whatever happens to those, the GPUs are read.
func TestManyBoards(t *testing.T) {
	s := newShim(t)
	lines := []string{"gpus 32"}
	for g := range 32 {
		lines = append(lines, fmt.Sprintf("mig %d", g))
	}
	s.fault(lines...)
	cards := s.cards(s.driver(Config{}), 0)
	if len(cards) != 96 {
		t.Fatalf("%d cards, want 96", len(cards))
	}
	for i := range 32 {
		if !cards[3*i].SM.OK {
			t.Errorf("GPU %d is not read", i)
		}
	}
}

// TestLost: what fails as a whole is an error that names it, and heals.
func TestLost(t *testing.T) {
	s := newShim(t)
	for _, c := range []struct {
		fault string
		is    error
		text  string
	}{
		{"gpus 0", library.ErrNoGPU, ""},
		{"error -21", nil, "shim error -21"}, // connection not valid
		{"error -67", nil, "shim error -67"}, // GPUs detached
		{"unreadable -1 -18", nil, "GPU 0: shim error -18"},
	} {
		s.fault()
		d := s.driver(Config{})
		s.cards(d, 0)
		s.fault(c.fault)
		_, err := d.Cards(time.Unix(1001, 0))
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.fault, err)
		}
		d.Close() // fails, as the engine is gone
		s.fault()
		if err := d.Open(time.Unix(1002, 0)); err != nil {
			t.Fatal(err)
		}
		same(t, c.fault+" healed", s.cards(d, 3), []gpu.Card{whole(0), whole(1)})
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	d := s.driver(Config{})
	s.cards(d, 0)
	s.fault("unreadable 1 -18")
	same(t, "one GPU lost", s.cards(d, 1), []gpu.Card{whole(0), {ID: "GPU-1", Host: "node", Index: "1"}})
	if got := s.log.String(); !strings.Contains(got, `first="GPU 1"`) || !strings.Contains(got, `why="GPU lost"`) {
		t.Errorf("the loss is not told:\n%s", got)
	}
}

// TestOtherInstances: instances that were made anew are watched anew, also
// where they have the old numbers and another size.
func TestOtherInstances(t *testing.T) {
	entities := func(slices ...int) (list []*entity) {
		for i, n := range slices {
			card := gpu.Card{ID: "GPU-0", Instance: fmt.Sprint(7 + i), Slices: n}
			list = append(list, newEntity(uint(i), card, instanceFields(), DefaultEvery))
		}
		return list
	}
	w := &watch{entities: entities(3, 3)}
	for name, tt := range map[string]struct {
		list []*entity
		want bool
	}{
		"the same":     {entities(3, 3), true},
		"one fewer":    {entities(3), false},
		"one more":     {entities(3, 3, 1), false},
		"another size": {entities(3, 2), false},
	} {
		if got := w.same(tt.list); got != tt.want {
			t.Errorf("%s: same is %v", name, got)
		}
	}
}
