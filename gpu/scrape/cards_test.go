package scrape

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

var instant = time.Unix(1_700_000_000, 0)

func gpus(t *testing.T, c policy.TelemetrySource) *Source {
	t.Helper()
	c.Kind, c.URL = policy.KindDCGMExporter, "http://127.0.0.1:1/metrics"
	s, err := New("s", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func cardsOf(t *testing.T, s *Source, text string, at time.Time) []gpu.Card {
	t.Helper()
	got, err := s.parse([]byte(text), at)
	if err != nil {
		t.Fatal(err)
	}
	return got.Cards
}

// O1: every figure of each GPU and instance, under either set of names.
func TestCards(t *testing.T) {
	some := gpu.Some
	whole := gpu.Card{
		ID: "GPU-aaaa", Host: "dock-1", Index: "0", Endpoints: gpu.EndpointsOf("chat-0"),
		Util: some(0.87), Active: some(0.8), SM: some(0.61), Occupancy: some(0.28), Tensor: some(0.31), DRAM: some(0.45),
		MemoryUsed: some(60000 << 20), MemoryTotal: some(80600 << 20), PCIeReceived: some(112603), PCIeSent: some(78398480),
		Power: some(612.25), Temperature: some(66), XID: some(79), Clocks: some(72),
	}
	want := []gpu.Card{
		whole,
		{ID: "GPU-bbbb", Host: "dock-1", Index: "1"},
		{ID: "GPU-bbbb", Host: "dock-1", Index: "1", Instance: "2", Slices: 3, Endpoints: gpu.EndpointsOf("small-0"), Util: some(0.6), Active: some(0.6), MemoryUsed: some(1 << 30)},
		{ID: "GPU-bbbb", Host: "dock-1", Index: "1", Instance: "9", Slices: 1, Endpoints: gpu.EndpointsOf("small-1"), Util: some(0.2), Active: some(0.2)},
		{ID: "GPU-cccc", Host: "dock-1", Index: "2", Util: some(0)},
	}
	byPod := policy.TelemetrySource{EndpointLabel: "pod"}
	for name, want := range map[string][]gpu.Card{"dcgm_full.prom": want, "dcgm_full_new_names.prom": {whole}} {
		got := cardsOf(t, gpus(t, byPod), file(t, name), instant)
		if len(got) != len(want) {
			t.Fatalf("%s: %d cards, want %d: %+v", name, len(got), len(want), got)
		}
		for i := range want {
			sameCard(t, got[i], want[i])
		}
	}
}

// sameCard compares cards; values to 1e-9 of themselves.
func sameCard(t *testing.T, got, want gpu.Card) {
	t.Helper()
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		a, isValue := g.Field(i).Interface().(gpu.Value)
		b, _ := w.Field(i).Interface().(gpu.Value)
		if isValue && a.OK == b.OK && math.Abs(a.V-b.V) <= 1e-9*math.Abs(b.V) {
			continue
		}
		if isValue || !g.Field(i).Equal(w.Field(i)) {
			t.Errorf("card %s/%s: %s = %v, want %v", want.ID, want.Instance, g.Type().Field(i).Name, g.Field(i), w.Field(i))
		}
	}
}

// A figure of its own that is blank leaves the card's others alone.
func TestCardBlank(t *testing.T) {
	got := cardsOf(t, gpus(t, policy.TelemetrySource{}), `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="a"} 50
DCGM_FI_DEV_FB_USED{gpu="0",UUID="a"} 9223372036854775794
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="a"} 100
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="a"} 2147483632
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="a"} 140737488355328
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0",UUID="a"} 9223372036854775792
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="a"} NaN
`, instant)
	if len(got) != 1 {
		t.Fatalf("cards = %+v", got)
	}
	sameCard(t, got[0], gpu.Card{ID: "a", Index: "0", Util: gpu.Some(0.5)})
}

// Running totals of PCIe make rates from the second look on, over the time
// between the looks; a restart makes none.
func TestCardTotals(t *testing.T) {
	s := gpus(t, policy.TelemetrySource{})
	for i, tt := range []struct {
		at    time.Duration
		total string
		want  gpu.Value
		reset uint64
	}{
		{0, "1000000", gpu.Value{}, 0},
		{5 * time.Second, "6000000", gpu.Some(1e6), 0},
		{7 * time.Second, "6000000", gpu.Some(0), 0},
		{8 * time.Second, "100", gpu.Value{}, 1},
		{9 * time.Second, "300", gpu.Some(200), 0},
		{9 * time.Second, "400", gpu.Value{}, 0},
		{4 * time.Second, "500", gpu.Value{}, 0},
		{5 * time.Second, "600", gpu.Some(100), 0},
	} {
		got, err := s.parse([]byte("DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL{UUID=\"a\"} "+tt.total+"\n"), instant.Add(tt.at))
		if err != nil || len(got.Cards) != 1 || got.Cards[0].PCIeReceived != tt.want || got.Faults[gpu.FaultReset] != tt.reset {
			t.Errorf("look %d = %+v, %v; want %v and %d resets", i, got, err, tt.want, tt.reset)
		}
	}
}

// GPUs that no label names are named by their exporter's address: those of two
// exporters are two.
func TestNamelessCards(t *testing.T) {
	const text = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 50\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 60\n"
	var infos []gpu.SourceInfo
	var samples []gpu.Sample
	for url, want := range map[string][2]string{
		"http://10.0.0.7:9400/metrics": {"10.0.0.7:9400/0", "10.0.0.7:9400/1"},
		"http://10.0.0.8:9400/metrics": {"10.0.0.8:9400/0", "10.0.0.8:9400/1"},
		"https://node-a/metrics":       {"node-a:443/0", "node-a:443/1"},
		"http://[fd00::1]/metrics":     {"[fd00::1]:80/0", "[fd00::1]:80/1"},
	} {
		s, err := New(url, policy.TelemetrySource{Kind: policy.KindDCGMExporter, URL: url}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.parse([]byte(text), instant)
		if err != nil || len(got.Cards) != 2 || got.Cards[0].ID != want[0] || got.Cards[1].ID != want[1] {
			t.Fatalf("%s: %+v, %v; want %v", url, got.Cards, err, want)
		}
		got.Source, got.At = url, instant
		infos, samples = append(infos, gpu.SourceInfo{Name: url, Every: time.Second}), append(samples, got)
	}
	g := gpu.NewGauge(policy.Default().Gauge, infos, instant)
	for _, sample := range samples {
		g.Observe(sample)
	}
	if cards := g.Reading().Cards(); len(cards) != 8 {
		t.Errorf("%d cards, want those of four exporters: %+v", len(cards), cards)
	}
	if got := cardsOf(t, gpus(t, policy.TelemetrySource{}), "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",Hostname=\"dock\"} 50\n", instant); got[0].ID != "dock/0" {
		t.Errorf("a GPU with a host is named %q", got[0].ID)
	}
}

// Which endpoint a card serves: its label, else the file, else all the same.
func TestEndpoints(t *testing.T) {
	path := filepath.Join(t.TempDir(), "endpoints.yaml")
	write := func(text string, at time.Duration) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, instant.Add(at), instant.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	write("GPU-a: chat-a\ndock/1: chat-b\nGPU-c/3: chat-c3\ndock/2: chat-c\n", 0)
	s := gpus(t, policy.TelemetrySource{Endpoint: "rest", EndpointLabel: "pod", EndpointsFile: path})
	text := `DCGM_FI_DEV_FB_USED{UUID="GPU-a",gpu="0",Hostname="dock"} 1
DCGM_FI_DEV_FB_USED{UUID="GPU-b",gpu="1",Hostname="dock"} 1
DCGM_FI_DEV_FB_USED{UUID="GPU-c",gpu="2",Hostname="dock",GPU_I_ID="3"} 1
DCGM_FI_DEV_FB_USED{UUID="GPU-c",gpu="2",Hostname="dock",GPU_I_ID="4"} 1
DCGM_FI_DEV_FB_USED{UUID="GPU-d",gpu="3",Hostname="dock",pod="z"} 1
DCGM_FI_DEV_FB_USED{UUID="GPU-d",gpu="3",Hostname="dock",pod="y"} 1
DCGM_FI_DEV_FB_USED{UUID="GPU-e",gpu="4",Hostname="dock",pod=""} 1
`
	check := func(faults uint64, want ...string) {
		t.Helper()
		got, err := s.parse([]byte(text), instant)
		if err != nil || len(got.Cards) != len(want) || got.Faults[gpu.FaultEndpoints] != faults {
			t.Fatalf("sample = %+v, %v; want %d cards", got, err, len(want))
		}
		for i, d := range got.Cards {
			if got := d.Endpoints.String(); got != want[i] {
				t.Errorf("card %s/%s serves %q, want %q", d.ID, d.Instance, got, want[i])
			}
		}
	}
	check(0, "chat-a", "chat-b", "chat-c3", "chat-c", "y, z", "rest")
	write("GPU-a: other\nGPU-c: [c-2, c-1]\ndock/1: []\n", time.Second)
	check(0, "other", "rest", "c-1, c-2", "c-1, c-2", "y, z", "rest")
	for i, bad := range []string{"GPU-a: {not: a name}\n", "GPU-a: [[a]]\n", "GPU-a: [" + strings.Repeat("x, ", gpu.MaxEndpoints) + "x]\n"} {
		write(bad, time.Duration(2+i)*time.Minute)
		for range 2 { // what was known stays, and each look says so
			check(1, "other", "rest", "c-1, c-2", "c-1, c-2", "y, z", "rest")
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check(1, "other", "rest", "c-1, c-2", "c-1, c-2", "y, z", "rest")
	write("", 3*time.Second)
	check(0, "rest", "rest", "rest", "rest", "y, z", "rest")
	if _, err := New("s", policy.TelemetrySource{Kind: policy.KindDCGMExporter, URL: "http://127.0.0.1:1/", EndpointsFile: path + "x"}, nil); err == nil {
		t.Error("a file that is not there is taken")
	}
}

// Cards come in the same order, whatever the order of the text.
func TestCardOrder(t *testing.T) {
	s := gpus(t, policy.TelemetrySource{})
	a, b := "DCGM_FI_DEV_FB_USED{UUID=\"a\"} 1\n", "DCGM_FI_DEV_FB_USED{UUID=\"b\"} 1\n"
	for _, text := range []string{a + b, b + a} {
		if got := cardsOf(t, s, text, instant); len(got) != 2 || got[0].ID != "a" || got[1].ID != "b" {
			t.Errorf("cards = %+v", got)
		}
	}
}
