package discovery

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func ep(address string, h Health, weight uint32, zone string) Endpoint {
	return Endpoint{Address: netip.MustParseAddrPort(address), Health: h, Weight: weight, Zone: zone}
}

func TestList(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []Endpoint
		err      string
	}{
		{"plain", "- 10.0.0.1:80\n- \"[fd00::1]:81\"\n", []Endpoint{ep("10.0.0.1:80", Healthy, 0, ""), ep("[fd00::1]:81", Healthy, 0, "")}, ""},
		{"keys", "- {address: \"10.0.0.1:80\", health: draining, weight: 3}\n", []Endpoint{ep("10.0.0.1:80", Draining, 3, "")}, ""},
		{"json", `["10.0.0.1:80", {"address": "10.0.0.2:80", "health": "degraded"}]`, []Endpoint{ep("10.0.0.1:80", Healthy, 0, ""), ep("10.0.0.2:80", Degraded, 0, "")}, ""},
		{"mapped", "- \"[::ffff:10.0.0.1]:80\"", []Endpoint{ep("10.0.0.1:80", Healthy, 0, "")}, ""},
		{"none said", "[]\n", []Endpoint{}, ""},
		{"empty", "", nil, "hosts.yaml: is empty"},
		{"comment only", "# nothing\n", nil, "is empty"},
		{"null", "null\n", nil, "is empty"},
		{"map", "a: b\n", nil, "hosts.yaml:1: must be a list"},
		{"two documents", "- 1.1.1.1:1\n---\n- 1.1.1.1:2\n", nil, "must be one YAML list (got 2 documents)"},
		{"name", "- 10.0.0.1:80\n- model:80\n", nil, `hosts.yaml:2: address must be ip:port (got "model:80"): EDS takes no names`},
		{"no port", "- 10.0.0.1\n", nil, "hosts.yaml:1: address must be ip:port"},
		{"port 0", "- 10.0.0.1:0\n", nil, "must be ip:port"},
		{"zone of an address", "- \"[fe80::1%eth0]:80\"\n", nil, "must be ip:port"},
		{"health", "- {address: \"10.0.0.1:80\",\n   health: ill}\n", nil, `hosts.yaml:2: health must be healthy, degraded, unhealthy or draining (got "ill")`},
		{"weight", "- {address: \"10.0.0.1:80\", weight: 129}\n", nil, `weight must be a whole number from 1 to 128 (got "129")`},
		{"weight 0", "- {address: \"10.0.0.1:80\", weight: 0}\n", nil, "weight must be"},
		{"key", "- {addr: \"10.0.0.1:80\"}\n", nil, `hosts.yaml:1: "addr" is no key`},
		{"key twice", "- {address: \"10.0.0.1:80\", address: \"10.0.0.2:80\"}\n", nil, "address stands twice"},
		{"no address", "- {weight: 1}\n", nil, "address is missing"},
		{"list in a list", "- [a]\n", nil, "must be ip:port or a map"},
		{"twice", "- 10.0.0.1:80\n- \"[::ffff:10.0.0.1]:80\"\n", nil, "hosts.yaml:2: address 10.0.0.1:80 stands on line 1 too"},
		{"cut in the middle", "- {address: \"10.0.0.1:8", nil, "hosts.yaml: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseList("hosts.yaml", []byte(c.in))
			check(t, got, err, c.want, c.err)
		})
	}
}

func check(t *testing.T, got []Endpoint, err error, want []Endpoint, wantErr string) {
	t.Helper()
	switch {
	case wantErr == "" && err != nil:
		t.Fatal(err)
	case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
		t.Fatalf("error %v, want %q", err, wantErr)
	case wantErr == "" && !slices.Equal(got, want):
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

const oneSlice = `
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {name: m-abc}
addressType: IPv4
ports:
- {name: http, port: 8000, protocol: TCP}
- {name: metrics, port: 9000, protocol: TCP}
endpoints:
- {addresses: [10.1.0.1], conditions: {ready: true, serving: true, terminating: false}, zone: eu-1a, nodeName: n1}
- {addresses: [10.1.0.2], conditions: {ready: false, serving: true, terminating: true}, zone: eu-1b}
- {addresses: [10.1.0.3], conditions: {ready: false, serving: false, terminating: false}}
- {addresses: [10.1.0.4], conditions: {}}
- {addresses: [10.1.0.5], conditions: {ready: false, serving: false, terminating: true}}
`

// podSlice is a slice with one pod.
func podSlice(family, address, uid string) string {
	return `{"kind":"EndpointSlice","addressType":"` + family + `","ports":[{"name":"http","port":80,"protocol":"TCP"}],"endpoints":[{"addresses":["` + address + `"],"targetRef":{"kind":"Pod","name":"p","uid":"` + uid + `"}}]}`
}

func TestSlices(t *testing.T) {
	all := []Endpoint{
		ep("10.1.0.1:8000", Healthy, 0, "eu-1a"), ep("10.1.0.2:8000", Draining, 0, "eu-1b"),
		ep("10.1.0.3:8000", Unhealthy, 0, ""), ep("10.1.0.4:8000", Healthy, 0, ""), ep("10.1.0.5:8000", Draining, 0, ""),
	}
	item := func(ports, address, ready string) string {
		return `{"kind":"EndpointSlice","addressType":"IPv4","ports":` + ports + `,"endpoints":[{"addresses":["` + address + `"],"conditions":{"ready":` + ready + `}}]}`
	}
	http := `[{"name":"http","port":80,"protocol":"TCP"}]`
	one, two := ep("10.1.0.1:80", Healthy, 0, ""), ep("10.1.0.2:80", Healthy, 0, "")
	for _, c := range []struct {
		name, in, port string
		want           []Endpoint
		err            string
	}{
		{"by name", oneSlice, "http", all, ""},
		{"by number", oneSlice, "8000", all, ""},
		{"several ports", oneSlice, "", nil, "s.yaml:2: has several TCP ports: say which by port"},
		{"port unknown", oneSlice, "grpc", nil, `s.yaml:2: has no TCP port "grpc"`},
		{"json list", `{"kind":"EndpointSliceList","items":[` + item(http, "10.1.0.1", "true") + "," + item(http, "10.1.0.2", "true") + `]}`, "http", []Endpoint{one, two}, ""},
		{"kubectl list", `{"kind":"List","items":[` + item(http, "10.1.0.1", "true") + `]}`, "", []Endpoint{one}, ""},
		{"sequence", "[" + item(http, "10.1.0.1", "true") + "]", "", []Endpoint{one}, ""},
		{"documents", "---\n" + item(http, "10.1.0.1", "true") + "\n---\n" + item(http, "10.1.0.2", "true") + "\n---\n", "", []Endpoint{one, two}, ""},
		{"in two slices, the best word counts", item(http, "10.1.0.1", "false") + "\n---\n" + item(http, "10.1.0.1", "true"), "", []Endpoint{one}, ""},
		{"one slice lacks the port", item(http, "10.1.0.1", "true") + "\n---\n" + item(`[{"name":"other","port":1}]`, "10.1.0.2", "true"), "http", []Endpoint{one}, ""},
		{"no pods", `{"kind":"EndpointSlice","addressType":"IPv4","ports":null,"endpoints":null}`, "http", nil, ""},
		{"number where no ports are listed", item("[]", "10.1.0.1", "true"), "80", []Endpoint{one}, ""},
		{"UDP", item(`[{"port":80,"protocol":"UDP"}]`, "10.1.0.1", "true"), "", nil, "has no TCP port"},
		{"names", `{"kind":"EndpointSlice","addressType":"FQDN"}`, "", nil, "s.yaml:1: addressType FQDN: EDS takes no names"},
		{"names beside addresses", `{"kind":"EndpointSlice","addressType":"FQDN","endpoints":[{"addresses":["m.example"]}]}` + "\n---\n" + item(http, "10.1.0.1", "true"), "", []Endpoint{one}, ""},
		{"no such type", `{"kind":"EndpointSlice","addressType":"MAC"}`, "", nil, "addressType must be IPv4 or IPv6"},
		{"as an API server lists them", `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","items":[{"metadata":{"name":"chat-abc"},"addressType":"IPv4","endpoints":[{"addresses":["10.1.0.1"],"conditions":{"ready":true}}],"ports":[{"name":"http","port":80,"protocol":"TCP"}]}]}`, "http", []Endpoint{one}, ""},
		{"an item of a List without its kind", `{"kind":"List","items":[{"addressType":"IPv4"}]}`, "", nil, "kind must be"},
		{"two families, one pod", podSlice("IPv6", "fd00::1", "u1") + "\n---\n" + podSlice("IPv4", "10.1.0.1", "u1"), "", []Endpoint{one}, ""},
		{"two families, IPv4 first", podSlice("IPv4", "10.1.0.1", "u1") + "\n---\n" + podSlice("IPv6", "fd00::1", "u1"), "", []Endpoint{one}, ""},
		{"two families, two pods", podSlice("IPv4", "10.1.0.1", "u1") + "\n---\n" + podSlice("IPv6", "fd00::1", "u2"), "", []Endpoint{one, ep("[fd00::1]:80", Healthy, 0, "")}, ""},
		{"no IP", item(http, "model", "true"), "", nil, `addresses[0] must be an IP address (got "model")`},
		{"other kind", "kind: Endpoints\n", "", nil, `s.yaml:1: kind must be EndpointSlice`},
		{"scalar", "hello\n", "", nil, "must be an EndpointSlice"},
		{"wrong type", "kind: EndpointSlice\naddressType: IPv4\nports: 5\n", "", nil, "line 3"},
		{"port too large", item(`[{"port":70000}]`, "10.1.0.1", "true"), "", nil, "70000"},
		{"empty", " \n", "", nil, "is empty"},
		{"list in a list in a list", `{"kind":"List","items":[{"kind":"List","items":[]}]}`, "", nil, "kind must be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseSlices("s.yaml", []byte(c.in), c.port)
			check(t, got, err, c.want, c.err)
		})
	}
}

// Whatever a file holds, reading it ends, and what is taken can be served.
func FuzzFiles(f *testing.F) {
	for _, s := range []string{oneSlice, "- 10.0.0.1:80\n", `["10.0.0.1:80"]`, "a: &a [*a]", "- {address: \"1.1.1.1:1\", weight: 1e3}", "[[[[", "kind: List\nitems: [{kind: EndpointSlice, addressType: IPv4}]"} {
		f.Add([]byte(s), "http")
	}
	f.Fuzz(func(t *testing.T, data []byte, port string) {
		list, err := parseList("f", data)
		slice, err2 := parseSlices("f", data, port)
		if err != nil && list != nil || err2 != nil && slice != nil {
			t.Fatal("a list beside an error")
		}
		seen := make(map[netip.AddrPort]bool)
		for _, e := range list {
			if !e.Address.IsValid() || e.Address.Port() == 0 || e.Weight > maxWeight || e.Health > Draining || seen[e.Address] {
				t.Fatalf("%+v", e)
			}
			seen[e.Address] = true
		}
		for _, e := range slice {
			if !e.Address.IsValid() || e.Address.Port() == 0 {
				t.Fatalf("%+v", e)
			}
		}
	})
}
