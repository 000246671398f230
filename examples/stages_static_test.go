package examples

import (
	"path"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/weirproxy/weir/policy"
)

// TestStaticStages (E4): each stage's Envoy file and policy belong together,
// and what makes a chain of them is there: the edge's pools are stages, its
// token goes on, and only the region has a queue.
func TestStaticStages(t *testing.T) {
	for kind, stage := range map[string]bool{"edge": true, "region": false} {
		t.Run(kind, func(t *testing.T) {
			raw, err := Files.ReadFile(path.Join("policies", kind+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			p, err := policy.Load(kind+".yaml", raw)
			if err != nil {
				t.Fatal(err)
			}
			b := bootstrap(t, kind+".yaml")
			host := manager(t, b).GetRouteConfig().GetVirtualHosts()[0]
			per := new(extprocv3.ExtProcPerRoute)
			if err := host.GetTypedPerFilterConfig()["envoy.filters.http.ext_proc"].UnmarshalTo(per); err != nil {
				t.Fatal(err)
			}
			said := per.GetOverrides().GetGrpcInitialMetadata()
			if len(said) != 1 || said[0].GetKey() != "weir-profile" || said[0].GetValue() != kind {
				t.Errorf("Envoy selects %v, want the profile %s", said, kind)
			}
			e, err := p.For(policy.Overrides{Profile: kind})
			if err != nil {
				t.Fatal(err)
			}
			if queues, limits := e.Queue.Length.Max > 0, len(e.Quotas) > 0; queues == stage || limits != stage {
				t.Errorf("queue %v, quotas %v", queues, limits)
			}
			if p.Identity.Forward != stage || p.Identity.From != policy.FromExtProc {
				t.Errorf("identity %+v", p.Identity)
			}
			cluster := func(name string) *clusterv3.Cluster {
				for _, c := range b.GetStaticResources().GetClusters() {
					if c.GetName() == name {
						return c
					}
				}
				t.Errorf("Envoy has no cluster %s", name)
				return nil
			}
			for _, pool := range p.Pools {
				if pool.Stage != stage || cluster(pool.Name) == nil {
					t.Errorf("pool %s: stage %v", pool.Name, pool.Stage)
				}
			}
			socket := cluster("weir").GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetPipe().GetPath()
			if p.Server.GRPC != "unix:"+socket {
				t.Errorf("weir listens on %s, Envoy calls %s", p.Server.GRPC, socket)
			}
		})
	}
}

// TestStaticRegionIsOneFilter: the region's file is one-filter.yaml but for
// its place in the chain.
func TestStaticRegionIsOneFilter(t *testing.T) {
	lines := func(name string) (out []string) {
		raw, err := Files.ReadFile(path.Join("envoy", name))
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(raw)) {
			if !strings.HasPrefix(l, "#") {
				out = append(out, strings.TrimSpace(l))
			}
		}
		return out
	}
	one := lines("one-filter.yaml")
	own := 0
	for _, l := range lines("region.yaml") {
		if !slices.Contains(one, l) {
			own++
			if !strings.Contains(l, "region") && !strings.Contains(l, "xff_num_trusted_hops") && !strings.Contains(l, "10001") && !strings.Contains(l, "for every route") {
				t.Errorf("only in region.yaml: %s", l)
			}
		}
	}
	if own == 0 {
		t.Error("region.yaml has nothing of its own")
	}
}

// TestStaticRoutesNarrowByThePolicy (E2): what the example routes write for weir
// is taken by the policies that belong to them: a model or profile that is not
// in one would refuse the whole route. gRPC calls have no model of their own
// there, so their route names none.
func TestStaticRoutesNarrowByThePolicy(t *testing.T) {
	for file, policies := range map[string][]string{
		"one-filter.yaml": {"default.yaml", "source.yaml"}, "two-filters.yaml": {"default.yaml", "source.yaml"},
		"edge.yaml": {"edge.yaml"}, "region.yaml": {"region.yaml"},
	} {
		for _, name := range policies {
			raw, err := Files.ReadFile(path.Join("policies", name))
			if err != nil {
				t.Fatal(err)
			}
			p, err := policy.Load(name, raw)
			if err != nil {
				t.Fatal(err)
			}
			serves := slices.ContainsFunc(p.APIs, func(a policy.API) bool { return a.Kind == policy.GRPC })
			for _, r := range manager(t, bootstrap(t, file)).GetRouteConfig().GetVirtualHosts()[0].GetRoutes() {
				said := r.GetMetadata().GetFilterMetadata()["weir.policy"].GetFields()
				o := policy.Overrides{
					Profile: said["profile"].GetStringValue(), Function: said["function"].GetStringValue(), Class: said["class"].GetStringValue(),
					MaxWait: said["maxWait"].GetStringValue(), Models: said["models"].GetStringValue(),
				}
				if _, err := p.For(o); err != nil {
					t.Errorf("%s, route %s, with %s: %v", file, r.GetName(), name, err)
				}
				if r.GetName() == "grpc" && serves != (o.Models != "") {
					t.Errorf("%s: route grpc narrows to %q, and %s serves gRPC: %v", file, o.Models, name, serves)
				}
			}
		}
	}
}
