package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// docs/gpu-agent.md has each flag with its default and each metric.
func TestDocumented(t *testing.T) {
	text := file(t, "docs/gpu-agent.md")
	flags := command().Flags()
	names := regexp.MustCompile(`(?m)^ +--([a-z-]+)`).FindAllStringSubmatch(flags.FlagUsages(), -1)
	if len(names) < 12 {
		t.Errorf("flags %v", names)
	}
	for _, name := range names {
		f := flags.Lookup(name[1])
		row := ""
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "| `--") && strings.Contains(line, "`--"+f.Name+"`") {
				row = line
			}
		}
		if row == "" || f.DefValue != "" && f.DefValue != "false" && !strings.Contains(row, "`"+f.DefValue+"`") {
			t.Errorf("--%s with its default %q is not documented: %q", f.Name, f.DefValue, row)
		}
	}
	b := newBoard(func([]gpu.Card) []*gpuv1.Card { return nil })
	b.put(seen{source: "script", cards: cards8(), dropped: gpu.Faults{gpu.FaultRange: 1}}, time.Now())
	registry := prometheus.NewRegistry()
	p := &pages{board: b, every: time.Second, watchers: func() int64 { return 0 }}
	registry.MustRegister(&collector{pages: p, fields: agent.Fields(), labels: cardLabels()})
	families, err := registry.Gather()
	if err != nil || len(families) < 20 {
		t.Fatalf("%d metrics, %v", len(families), err)
	}
	for _, f := range families {
		if !strings.Contains(text, "`"+f.GetName()+"`") {
			t.Errorf("%s is not documented", f.GetName())
		}
	}
}
