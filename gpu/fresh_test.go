package gpu

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// TestFreshCards: figures stand for as long as a sample is fresh, health until
// the source was silent for faultFor; a lost card has no figures.
func TestFreshCards(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	config := policy.Default().Gauge
	g := NewGauge(config, []SourceInfo{{Name: "cards", Every: time.Second}}, start)
	g.Observe(Sample{Source: "cards", At: start.Add(-time.Second), Cards: []Card{{ID: "kept"}, {ID: "lost"}}})
	g.Observe(Sample{Source: "cards", At: start, Cards: []Card{{ID: "kept"}}})
	r := g.Reading()
	cards := r.Cards()
	if len(cards) != 2 || cards[1].Health != Lost {
		t.Fatalf("%+v: want one card that is lost", cards)
	}
	stranger := cards[0]
	stranger.Source = "stranger"
	for _, c := range []struct {
		name            string
		card            *CardState
		age             time.Duration
		health, figures bool
	}{
		{"now", &cards[0], 0, true, true},
		{"three periods", &cards[0], 3 * time.Second, true, true},
		{"stale", &cards[0], 3*time.Second + 1, true, false},
		{"at faultFor", &cards[0], config.FaultFor, true, false},
		{"beyond it", &cards[0], config.FaultFor + 1, false, false},
		{"lost", &cards[1], 0, true, false},
		{"of nobody", &stranger, 0, false, false},
	} {
		if health, figures := r.Fresh(c.card, start.Add(c.age)); health != c.health || figures != c.figures {
			t.Errorf("%s: health %v, figures %v, want %v and %v", c.name, health, figures, c.health, c.figures)
		}
	}
}
