package xds

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/envoy/discovery"
)

// stateMagic begins the file: a line of magic, version and checksum, and then
// JSON.
const stateMagic = "weir-xds-state 1 sha256 "

// state is what the disk has of a book.
type state struct {
	Saved    time.Time      `json:"saved"` // for people: no decision takes it, clocks step
	Clusters []stateCluster `json:"clusters"`
}

type stateCluster struct {
	Name      string           `json:"name"`
	Runtime   map[string]int64 `json:"runtime,omitempty"`
	Drop      int64            `json:"drop,omitempty"`
	Seq       string           `json:"seq,omitempty"`
	Served    bool             `json:"served,omitempty"` // by EDS
	Failed    []int            `json:"failed,omitempty"` // priorities that are out
	Endpoints []stateEndpoint  `json:"endpoints,omitempty"`
}

// stateEndpoint holds the health that discovery told; weir's own judgement is
// made anew.
type stateEndpoint struct {
	Address  netip.AddrPort `json:"address"`
	Priority int            `json:"priority,omitempty"`
	Region   string         `json:"region,omitempty"`
	Zone     string         `json:"zone,omitempty"`
	Weight   uint32         `json:"weight,omitempty"`
	Health   string         `json:"health,omitempty"`
	Subset   string         `json:"subset,omitempty"`
}

// save is the state of the book, in order of names.
func (b *book) save(now time.Time) *state {
	s := &state{Saved: now.UTC().Round(time.Millisecond)}
	for name, r := range b.records {
		if !r.served && len(r.runtime) == 0 && r.drop == 0 {
			continue
		}
		c := stateCluster{Name: name, Runtime: r.runtime, Drop: r.drop, Seq: r.seq, Served: r.served}
		for p := range r.outages {
			if r.outages[p].failed {
				c.Failed = append(c.Failed, p)
			}
		}
		for _, e := range r.merge(r.view) {
			se := stateEndpoint{Address: e.Address, Priority: e.Priority, Region: e.Region, Zone: e.Zone, Weight: e.Weight, Subset: string(e.Subset)}
			if e.Health != discovery.Healthy {
				se.Health = e.Health.String()
			}
			c.Endpoints = append(c.Endpoints, se)
		}
		s.Clusters = append(s.Clusters, c)
	}
	slices.SortFunc(s.Clusters, func(a, b stateCluster) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// inherit takes a state as the first content. Its overrides end with graceEnd.
func (b *book) inherit(s *state, graceEnd time.Time) error {
	var records []*record
	for i := range s.Clusters {
		r, err := s.Clusters[i].record()
		if err != nil {
			return fmt.Errorf("cluster %q: %w", s.Clusters[i].Name, err)
		}
		records = append(records, r)
	}
	for _, r := range records {
		b.records[r.name] = r
	}
	b.graceEnd = graceEnd
	return nil
}

func (c *stateCluster) record() (*record, error) {
	if c.Name == "" || c.Drop < 0 || c.Drop > 100 {
		return nil, fmt.Errorf("drop must be from 0 to 100, the name not empty (got %d)", c.Drop)
	}
	r := &record{name: c.Name, runtime: c.Runtime, drop: c.Drop, seq: c.Seq, served: c.Served}
	r.inherited = len(r.runtime) > 0 || r.drop > 0
	for key, v := range c.Runtime {
		if !strings.HasPrefix(key, "circuit_breakers."+c.Name+".") && key != "upstream.maintenance_mode."+c.Name || v < 0 || v > math.MaxUint32 {
			return nil, fmt.Errorf("runtime key %q with %d is not one of this cluster", key, v)
		}
	}
	for _, e := range c.Endpoints {
		h := discovery.Healthy
		if e.Health != "" {
			var err error
			if h, err = discovery.ParseHealth(e.Health); err != nil {
				return nil, fmt.Errorf("endpoint %v: health %w", e.Address, err)
			}
		}
		if !e.Address.IsValid() || e.Priority < 0 || e.Priority > maxPriority {
			return nil, fmt.Errorf("endpoint %v: priority must be from 0 to %d (got %d), the address ip:port", e.Address, maxPriority, e.Priority)
		}
		subset, err := discovery.ParseSubset(e.Subset)
		if err != nil {
			return nil, fmt.Errorf("endpoint %v: subset %w", e.Address, err)
		}
		r.before = append(r.before, discovery.Endpoint{Address: e.Address, Priority: e.Priority, Region: e.Region, Zone: e.Zone, Weight: e.Weight, Health: h, Subset: subset})
		for len(r.outages) <= e.Priority {
			r.outages = append(r.outages, outage{})
		}
	}
	for _, p := range c.Failed {
		if p >= 0 && p < len(r.outages) {
			r.outages[p] = outage{seen: true, failed: true}
		}
	}
	if !c.Served {
		return r, nil
	}
	a := assignment{cluster: r.name, endpoints: r.before, drop: r.drop, seq: r.seq}
	if len(r.outages) > 1 {
		r.out = make([]bool, len(r.outages))
		for p := range r.outages {
			r.out[p] = r.outages[p].failed
		}
		a.out = r.out
	}
	r.resource = a.build()
	return r, nil
}

func parseState(text []byte) (*state, error) {
	head, body, whole := bytes.Cut(text, []byte("\n"))
	sum, ok := bytes.CutPrefix(head, []byte(stateMagic))
	if !ok || !whole {
		return nil, errors.New("is no state of this release")
	}
	if is := sha256.Sum256(body); hex.EncodeToString(is[:]) != string(sum) {
		return nil, errors.New("checksum does not fit: half written, or changed by hand")
	}
	s := new(state)
	if err := json.Unmarshal(body, s); err != nil {
		return nil, err
	}
	return s, nil
}
