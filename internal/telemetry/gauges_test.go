package telemetry

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// fullCard is a card of which everything is known.
func fullCard(id string) gpu.Card {
	return gpu.Card{
		ID: id, Host: "node-a", Index: "0", Instance: "3", Endpoints: gpu.EndpointsOf("chat-0"),
		Util: gpu.Some(0.75), Active: gpu.Some(0.7), SM: gpu.Some(0.5), Occupancy: gpu.Some(0.3), Tensor: gpu.Some(0.25), DRAM: gpu.Some(0.4),
		MemoryUsed: gpu.Some(64e9), MemoryTotal: gpu.Some(80e9), PCIeReceived: gpu.Some(1e9), PCIeSent: gpu.Some(2e9),
		Power: gpu.Some(400), Temperature: gpu.Some(61), XID: gpu.Some(0), Clocks: gpu.Some(0x24),
	}
}

// gauged is a pool with a GPU source, an engine and a node, of which
// everything is known at now.
func gauged(pool string, now time.Time) PoolGauge {
	p := policy.Default().Gauge
	p.Smoothing = [3]float64{0.5, 0.25, 0.25} // exact in binary
	g := gpu.NewGauge(p, []gpu.SourceInfo{{Name: "cards", Every: time.Second}, {Name: "engine", Engine: true, Every: time.Second}, {Name: "node", Every: time.Second}}, now)
	g.Miss("cards", now, gpu.Missed(gpu.FaultStatus, errors.New("500")))
	g.Observe(gpu.Sample{Source: "cards", At: now, Util: gpu.Some(0.75), GPUs: 1, Cards: []gpu.Card{fullCard("GPU-1")}})
	g.Observe(gpu.Sample{Source: "engine", At: now, KV: gpu.Some(0.4), Waiting: gpu.Some(5), Running: gpu.Some(7)})
	g.Observe(gpu.Sample{Source: "node", At: now, Load: gpu.Some(0.25)})
	return PoolGauge{pool, g.Reading()}
}

// page is what a scraper gets of some readings.
func page(t *testing.T, readings ...PoolGauge) string {
	t.Helper()
	m := New(10, "test")
	m.Gauges(func() []PoolGauge { return readings })
	return scraped(t, m)
}

// TestResources: what engines, GPUs and nodes say is shown as they said it,
// and how well the sources are (O1).
func TestResources(t *testing.T) {
	got := page(t, gauged("chat", time.Now()))
	const card = `{gpu="GPU-1",host="node-a",index="0",mig="3",pool="chat"} `
	for _, line := range []string{
		`weir_gauge_kv_use{pool="chat"} 0.4`, `weir_gauge_engine_waiting{pool="chat"} 5`, `weir_gauge_engine_running{pool="chat"} 7`,
		`weir_gauge_node_load{pool="chat"} 0.25`, `weir_gauge_capacity{pool="chat"} 1`,
		// Half of it is the share of the target, half the neutral history.
		`weir_gauge_part{pool="chat",signal="kv",source="engine"} 0.5`, `weir_gauge_part{pool="chat",signal="waiting",source="engine"} 0.75`,
		`weir_gauge_part{pool="chat",signal="util",source="cards"} 0.625`,
		`weir_gauge_cards{health="healthy",pool="chat"} 1`, `weir_gauge_cards{health="faulty",pool="chat"} 0`,
		`weir_gauge_cards{health="degraded",pool="chat"} 0`, `weir_gauge_cards{health="lost",pool="chat"} 0`,
		`weir_gauge_cards_hidden{pool="chat"} 0`,
		`weir_gauge_endpoints{health="healthy",pool="chat"} 1`, `weir_gauge_endpoints{health="unhealthy",pool="chat"} 0`,
		`weir_gauge_samples_total{pool="chat",source="cards"} 1`, `weir_gauge_missed_total{pool="chat",source="cards"} 1`,
		`weir_gauge_dropped_total{pool="chat",source="cards"} 0`, `weir_gauge_repeated_total{pool="chat",source="cards"} 0`,
		`weir_gauge_faults_total{kind="status",pool="chat",source="cards"} 1`,
		`weir_gauge_suspect{pool="chat",source="cards"} 0`,
		`weir_gpu_health` + card + `0`, `weir_gpu_suspect` + card + `0`, `weir_gpu_xid` + card + `0`,
		`weir_gpu_memory_used_bytes` + card + `6.4e+10`, `weir_gpu_memory_total_bytes` + card + `8e+10`,
		`weir_gpu_util_ratio` + card + `0.75`, `weir_gpu_active_ratio` + card + `0.7`, `weir_gpu_sm_active_ratio` + card + `0.5`,
		`weir_gpu_sm_occupancy_ratio` + card + `0.3`, `weir_gpu_tensor_active_ratio` + card + `0.25`, `weir_gpu_dram_active_ratio` + card + `0.4`,
		`weir_gpu_pcie_received_bytes_per_second` + card + `1e+09`, `weir_gpu_pcie_sent_bytes_per_second` + card + `2e+09`,
		`weir_gpu_clock_reason{gpu="GPU-1",host="node-a",index="0",mig="3",pool="chat",reason="sw_power_cap"} 1`,
		`weir_gpu_clock_reason{gpu="GPU-1",host="node-a",index="0",mig="3",pool="chat",reason="sw_thermal"} 1`,
		`weir_gpu_power_watts` + card + `400`, `weir_gpu_temperature_celsius` + card + `61`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("%s is not shown", line)
		}
	}
	if strings.Contains(got, `weir_gauge_faults_total{kind="timeout"`) {
		t.Error("a fault that never was is shown")
	}
}

// TestUnknownIsNotZero: what nobody knows has no series.
func TestUnknownIsNotZero(t *testing.T) {
	now := time.Now()
	g := gpu.NewGauge(policy.Default().Gauge, []gpu.SourceInfo{{Name: "cards", Every: time.Second}}, now)
	before := page(t, PoolGauge{"chat", g.Reading()})
	g.Observe(gpu.Sample{Source: "cards", At: now, Cards: []gpu.Card{{ID: "GPU-1", Power: gpu.Some(90)}}})
	after := page(t, PoolGauge{"chat", g.Reading()})
	for _, name := range []string{"weir_gauge_kv_use", "weir_gauge_engine_waiting", "weir_gauge_engine_running", "weir_gauge_node_load", "weir_gauge_part", "weir_gauge_endpoints", "weir_gpu_util_ratio", "weir_gpu_memory_used_bytes", "weir_gpu_xid"} {
		if strings.Contains(before, name+"{") || strings.Contains(after, name+"{") {
			t.Errorf("%s is shown, though nobody told it", name)
		}
	}
	for _, name := range []string{"weir_gauge_source_age_seconds", "weir_gauge_cards", "weir_gpu_health", "weir_gpu_power_watts"} {
		if strings.Contains(before, name+"{") || !strings.Contains(after, name+"{") {
			t.Errorf("%s is not shown exactly from the first sample on", name)
		}
	}
}

// TestOldFiguresGo: figures of a card leave when they are stale, its health
// when it does not count any more; the age of its source tells why.
func TestOldFiguresGo(t *testing.T) {
	now := time.Now()
	faultFor := policy.Default().Gauge.FaultFor
	for _, c := range []struct {
		age             time.Duration
		figures, health bool
	}{{2 * time.Second, true, true}, {10 * time.Second, false, true}, {faultFor + time.Minute, false, false}} {
		got := page(t, gauged("chat", now.Add(-c.age)))
		if has := strings.Contains(got, "weir_gpu_power_watts{"); has != c.figures {
			t.Errorf("figures of %v ago: shown %v", c.age, has)
		}
		if has := strings.Contains(got, "weir_gpu_health{"); has != c.health {
			t.Errorf("health of %v ago: shown %v", c.age, has)
		}
		if has := strings.Contains(got, `weir_gauge_cards{health="healthy",pool="chat"} 1`); has != c.health {
			t.Errorf("health of %v ago: counted %v", c.age, has)
		}
		if !strings.Contains(got, "weir_gauge_source_age_seconds{") {
			t.Errorf("the age of %v is not shown", c.age)
		}
	}
}

// TestFaultyCards: a GPU after a fatal XID and a lost one are told apart, cost
// capacity and make their endpoints unhealthy.
func TestFaultyCards(t *testing.T) {
	now := time.Now()
	g := gpu.NewGauge(policy.Default().Gauge, []gpu.SourceInfo{{Name: "cards", Every: time.Second}}, now.Add(-time.Minute))
	cards := []gpu.Card{fullCard("GPU-1"), fullCard("GPU-2"), fullCard("GPU-3"), fullCard("GPU-4")}
	cards[1].Endpoints = gpu.EndpointsOf("chat-1")
	g.Observe(gpu.Sample{Source: "cards", At: now.Add(-time.Second), Cards: cards})
	cards[0].XID = gpu.Some(79)
	g.Observe(gpu.Sample{Source: "cards", At: now, Cards: cards[:3]})
	got := page(t, PoolGauge{"chat", g.Reading()})
	labels := func(id string) string {
		return fmt.Sprintf(`{gpu=%q,host="node-a",index="0",mig="3",pool="chat"}`, id)
	}
	for _, line := range []string{
		`weir_gpu_health` + labels("GPU-1") + ` 2`, `weir_gpu_xid` + labels("GPU-1") + ` 79`,
		`weir_gpu_health` + labels("GPU-2") + ` 0`, `weir_gpu_health` + labels("GPU-4") + ` 3`,
		`weir_gauge_cards{health="faulty",pool="chat"} 1`, `weir_gauge_cards{health="lost",pool="chat"} 1`, `weir_gauge_cards{health="healthy",pool="chat"} 2`,
		`weir_gauge_capacity{pool="chat"} 0.5`,
		`weir_gauge_endpoints{health="healthy",pool="chat"} 1`, `weir_gauge_endpoints{health="unhealthy",pool="chat"} 1`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("%s is not shown", line)
		}
	}
	if strings.Contains(got, "weir_gpu_power_watts"+labels("GPU-4")) {
		t.Error("figures of a lost GPU are shown")
	}
}

// TestSuspectSource: a source that is not believed is shown as that.
func TestSuspectSource(t *testing.T) {
	now := time.Now()
	g := gpu.NewGauge(policy.Default().Gauge, []gpu.SourceInfo{{Name: "cards", Every: time.Second}}, now)
	g.Observe(gpu.Sample{Source: "cards", At: now, Util: gpu.Some(0.99), Active: gpu.Some(0), GPUs: 1, Cards: []gpu.Card{{ID: "GPU-1", Util: gpu.Some(0.99), Active: gpu.Some(0)}}})
	got := page(t, PoolGauge{"chat", g.Reading()})
	for _, line := range []string{`weir_gauge_suspect{pool="chat",source="cards"} 1`, `weir_gpu_suspect{gpu="GPU-1",host="",index="",mig="",pool="chat"} 1`} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("%s is not shown", line)
		}
	}
}

// TestCardsAreBounded: however many GPUs there are and whatever they are
// called, the page stays small and whole, and nothing is lost from the counts.
func TestCardsAreBounded(t *testing.T) {
	now := time.Now()
	g := gpu.NewGauge(policy.Default().Gauge, []gpu.SourceInfo{{Name: "cards", Every: time.Second}}, now)
	long := strings.Repeat("ä", maxLabel) // two bytes each
	cards := []gpu.Card{{ID: "bad\xff"}, {ID: "bad\xfe"}, {ID: long + "1"}, {ID: long + "2"}}
	for i := range 2 * maxCards {
		cards = append(cards, gpu.Card{ID: fmt.Sprint("GPU-", i)})
	}
	g.Observe(gpu.Sample{Source: "cards", At: now, Cards: cards})
	got := page(t, PoolGauge{"chat", g.Reading()}, gauged("other", now))
	if n := strings.Count(got, "\nweir_gpu_health{"); n != maxCards+1 {
		t.Errorf("%d cards are shown, want %d of one pool and 1 of the other", n, maxCards)
	}
	for _, line := range []string{
		fmt.Sprintf(`weir_gauge_cards{health="healthy",pool="chat"} %d`, len(cards)),
		fmt.Sprintf(`weir_gauge_cards_hidden{pool="chat"} %d`, len(cards)-maxCards),
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("%s is not shown", line)
		}
	}
	for line := range strings.Lines(got) {
		if strings.Contains(line, `gpu="ä`) && strings.Count(line, "ä") != maxLabel/2 {
			t.Errorf("a name is not cut at %d bytes: %s", maxLabel, line)
		}
	}
}

// TestAllCardsAreBounded: 10,000 GPUs over some pools make no more series than
// maxAllCards do; a small pool keeps all of its own, and what has no series is
// counted.
func TestAllCardsAreBounded(t *testing.T) {
	now := time.Now()
	var readings []PoolGauge
	for i, n := range []int{3000, 10, 2990, 100, 3000, 900} {
		g := gpu.NewGauge(policy.Default().Gauge, []gpu.SourceInfo{{Name: "cards", Every: time.Second}}, now)
		cards := make([]gpu.Card, n)
		for k := range cards {
			cards[k] = gpu.Card{ID: fmt.Sprint("GPU-", k), Power: gpu.Some(1)}
		}
		g.Observe(gpu.Sample{Source: "cards", At: now, Cards: cards})
		readings = append(readings, PoolGauge{fmt.Sprint("pool-", i), g.Reading()})
	}
	got := page(t, readings...)
	all := 0
	for i, want := range []struct{ shown, cards int }{{228, 3000}, {10, 10}, {228, 2990}, {100, 100}, {228, 3000}, {228, 900}} {
		shown := 0
		for line := range strings.Lines(got) {
			if strings.HasPrefix(line, "weir_gpu_power_watts{") && strings.Contains(line, fmt.Sprintf(`pool="pool-%d"`, i)) {
				shown++
			}
		}
		all += shown
		if shown != want.shown {
			t.Errorf("pool %d shows %d of %d cards, want %d", i, shown, want.cards, want.shown)
		}
		for _, line := range []string{
			fmt.Sprintf(`weir_gauge_cards{health="healthy",pool="pool-%d"} %d`, i, want.cards),
			fmt.Sprintf(`weir_gauge_cards_hidden{pool="pool-%d"} %d`, i, want.cards-want.shown),
		} {
			if !strings.Contains(got, "\n"+line+"\n") {
				t.Errorf("%s is not shown", line)
			}
		}
	}
	if all > maxAllCards || all < maxAllCards-len(readings) {
		t.Errorf("%d cards have series, want %d or a little less", all, maxAllCards)
	}
}

// TestShare: the parts that pools get of the room for series.
func TestShare(t *testing.T) {
	for _, tt := range []struct {
		pools []int
		want  int
	}{
		{nil, maxCards},
		{[]int{5000}, maxCards},
		{[]int{5000, 0, 5000, 256, 12}, maxCards}, // 780
		{[]int{256, 256, 256, 256}, maxCards},     // exactly
		{[]int{256, 256, 257, 256, 1}, 255},       // 1023 for four
		{[]int{1000, 1000, 1000, 1000, 1000}, 204},
		{slices.Repeat([]int{1}, 1024), maxCards},
		{slices.Repeat([]int{1}, 1025), 0}, // too many pools for one each
	} {
		if got := share(slices.Clone(tt.pools)); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.pools[:min(len(tt.pools), 6)], got, tt.want)
		}
	}
}
