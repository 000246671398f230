package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// slice is the part of discovery.k8s.io/v1 EndpointSlice that matters here.
type slice struct {
	Kind        string      `yaml:"kind"`
	AddressType string      `yaml:"addressType"`
	Items       []yaml.Node `yaml:"items"`
	Ports       []struct {
		Name     string  `yaml:"name"`
		Port     *uint16 `yaml:"port"`
		Protocol string  `yaml:"protocol"`
	} `yaml:"ports"`
	Endpoints []yaml.Node `yaml:"endpoints"`
}

// member is one endpoint of a slice. Of Addresses the first is used: they are
// ways to the same host.
type member struct {
	Addresses []string `yaml:"addresses"`
	TargetRef struct {
		Kind      string `yaml:"kind"`
		Namespace string `yaml:"namespace"`
		Name      string `yaml:"name"`
		UID       string `yaml:"uid"`
	} `yaml:"targetRef"`
	Zone       string `yaml:"zone"`
	Conditions struct {
		Ready       *bool `yaml:"ready"`
		Serving     *bool `yaml:"serving"`
		Terminating *bool `yaml:"terminating"`
	} `yaml:"conditions"`
}

// health follows the conditions' documentation: ready unsaid is true, serving
// unsaid is ready, terminating unsaid is false. A host that ends drains; one
// that is not ready gets nothing.
func (m *member) health() Health {
	c := m.Conditions
	ready := c.Ready == nil || *c.Ready
	switch {
	case c.Terminating != nil && *c.Terminating:
		return Draining
	case ready:
		return Healthy
	}
	return Unhealthy
}

// pod names what stands behind the endpoint; "" where the slice does not say.
func (m *member) pod() string {
	t := m.TargetRef
	if t.UID != "" || t.Name == "" {
		return t.UID
	}
	return t.Kind + "/" + t.Namespace + "/" + t.Name
}

// parseSlices reads EndpointSlices: YAML or JSON, one, a list (EndpointSliceList,
// List, or a plain sequence) or several documents. port is the name or the
// number of the port, "" the only one. A slice without that port, or of host
// names (EDS takes none), is left out; an error where all are. An endpoint may
// stand in several slices, the best word counts then. A pod of two families
// has a slice of each and is one host: its IPv4 address counts. An error names
// file and line.
func parseSlices(file string, data []byte, port string) ([]Endpoint, error) {
	docs, err := documents(file, data)
	if err != nil {
		return nil, err
	}
	r := reader{file: file, port: port, byAddress: make(map[netip.AddrPort]int), byPod: make(map[podPort]int)}
	for _, d := range docs {
		if err := r.document(d, 0, false); err != nil {
			return nil, err
		}
	}
	if r.unmatched != nil && r.matched == 0 {
		return nil, r.unmatched
	}
	return r.list, nil
}

type reader struct {
	file, port string
	list       []Endpoint
	byAddress  map[netip.AddrPort]int
	byPod      map[podPort]int
	matched    int   // slices with the port
	unmatched  error // of the first slice that was left out
}

// podPort is a pod at a port: pods may serve two ports of a name in two slices.
type podPort struct {
	pod  string
	port uint16
}

// document reads a slice or a list of them. The items of an EndpointSliceList
// may leave their kind out, as an API server does.
func (r *reader) document(n *yaml.Node, depth int, inList bool) error {
	if n.Kind == yaml.SequenceNode && depth == 0 {
		for _, c := range n.Content {
			if err := r.document(c, 1, false); err != nil {
				return err
			}
		}
		return nil
	}
	var s slice
	if n.Kind != yaml.MappingNode {
		return at(r.file, n, "must be an EndpointSlice or a list of them")
	}
	if err := n.Decode(&s); err != nil {
		return fmt.Errorf("%s: %w", r.file, err)
	}
	switch {
	case s.Kind == "EndpointSlice", s.Kind == "" && inList:
		return r.slice(n, &s)
	case (s.Kind == "EndpointSliceList" || s.Kind == "List") && depth < 2:
		for i := range s.Items {
			if err := r.document(&s.Items[i], 2, s.Kind == "EndpointSliceList"); err != nil {
				return err
			}
		}
		return nil
	}
	return at(r.file, n, fmt.Sprintf("kind must be EndpointSlice, EndpointSliceList or List (got %.60q)", s.Kind))
}

func (r *reader) slice(n *yaml.Node, s *slice) error {
	switch s.AddressType {
	case "IPv4", "IPv6":
	case "FQDN":
		r.leaveOut(at(r.file, n, "addressType FQDN: EDS takes no names"))
		return nil
	default:
		return at(r.file, n, fmt.Sprintf("addressType must be IPv4 or IPv6 (got %.60q)", s.AddressType))
	}
	if len(s.Endpoints) == 0 {
		r.matched++ // a Service without pods has a slice without ports
		return nil
	}
	port, err := r.pick(s)
	if err != nil {
		r.leaveOut(at(r.file, n, err.Error()))
		return nil
	}
	r.matched++
	for i := range s.Endpoints {
		if err := r.member(&s.Endpoints[i], port); err != nil {
			return err
		}
	}
	return nil
}

// leaveOut remembers why the first slice was left out.
func (r *reader) leaveOut(err error) {
	if r.unmatched == nil {
		r.unmatched = err
	}
}

func (r *reader) member(n *yaml.Node, port uint16) error {
	var m member
	if err := n.Decode(&m); err != nil {
		return fmt.Errorf("%s: %w", r.file, err)
	}
	if len(m.Addresses) == 0 {
		return at(r.file, n, "addresses is missing")
	}
	ip, err := netip.ParseAddr(m.Addresses[0])
	if err != nil || ip.Zone() != "" {
		return at(r.file, n, fmt.Sprintf("addresses[0] must be an IP address (got %.60q)", m.Addresses[0]))
	}
	if !isLabel(m.Zone) {
		return at(r.file, n, fmt.Sprintf("zone must have at most %d bytes without control characters (got %.60q)", maxLabel, m.Zone))
	}
	e := Endpoint{Address: plain(netip.AddrPortFrom(ip, port)), Zone: m.Zone, Health: m.health()}
	same := podPort{m.pod(), port}
	i, known := r.byAddress[e.Address]
	if !known && same.pod != "" {
		i, known = r.byPod[same]
		if known = known && e.Address.Addr().Is4() != r.list[i].Address.Addr().Is4(); known && e.Address.Addr().Is4() {
			delete(r.byAddress, r.list[i].Address)
			r.byAddress[e.Address], r.list[i].Address = i, e.Address
		}
	}
	if known {
		r.list[i].Health = min(r.list[i].Health, e.Health)
		return nil
	}
	if len(r.list) == maxEndpoints {
		return at(r.file, n, fmt.Sprintf("must have at most %d endpoints", maxEndpoints))
	}
	r.byAddress[e.Address] = len(r.list)
	if same.pod != "" {
		r.byPod[same] = len(r.list)
	}
	r.list = append(r.list, e)
	return nil
}

// pick finds the port's number in a slice. A slice that lists no ports has
// whichever the number says.
func (r *reader) pick(s *slice) (uint16, error) {
	number, numeric := uint16(0), false
	if n, err := strconv.ParseUint(r.port, 10, 16); err == nil && n > 0 {
		number, numeric = uint16(n), true
	}
	if numeric && len(s.Ports) == 0 {
		return number, nil
	}
	var found []uint16
	for _, p := range s.Ports {
		if p.Port == nil || *p.Port == 0 || p.Protocol != "" && p.Protocol != "TCP" {
			continue
		}
		if r.port == "" || p.Name == r.port || numeric && *p.Port == number {
			found = append(found, *p.Port)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1 && r.port == "":
		return 0, errors.New("has several TCP ports: say which by port")
	case len(found) > 1:
		return 0, fmt.Errorf("has several ports %.60q", r.port)
	case r.port == "":
		return 0, errors.New("has no TCP port")
	}
	return 0, fmt.Errorf("has no TCP port %.60q", r.port)
}
