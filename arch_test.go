package weir

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weirproxy/weir"

// room is one row of the table of arrows: what a package may import of ours
// and of third parties, and why. An entry ending in "/..." allows a subtree.
type room struct {
	ours  []string
	third []string
	why   string
}

var (
	yaml     = []string{"go.yaml.in/yaml/v3"}
	grpc     = []string{"google.golang.org/...", "github.com/envoyproxy/go-control-plane/...", "github.com/cncf/xds/go/..."}
	decision = []string{"admission", "risk", "quota", "breaker", "queue", "gpu", "identity", "policy"}
)

// arrows is section 1 of the floor plan (doc.go). Keys are folders; a folder
// that is not listed fails.
var arrows = map[string]room{
	".":                        {[]string{"..."}, []string{"..."}, "the root holds the floor plan and tests about the whole house"},
	"policy":                   {nil, yaml, "ground floor: everybody reads it, it reads nobody"},
	"identity":                 {[]string{"policy"}, nil, "a room: names and scopes, no tokens"},
	"quota":                    {[]string{"policy"}, nil, "a room"},
	"breaker":                  {[]string{"policy"}, nil, "a room"},
	"queue":                    {[]string{"policy"}, nil, "a room"},
	"gpu":                      {[]string{"policy"}, nil, "a room"},
	"admission":                {decision, nil, "the desk asks the rooms"},
	"quota/memstore":           {[]string{"quota", "policy"}, nil, "a store adapts the ledger"},
	"quota/redisstore":         {[]string{"quota", "quota/memstore", "policy", "internal/redisclient"}, []string{"github.com/redis/go-redis/v9/..."}, "a store adapts the ledger to Redis; while Redis is away it counts in memory"},
	"quota/storetest":          {[]string{"quota", "policy"}, nil, "the suite that every store runs"},
	"gpu/scrape":               {[]string{"gpu", "policy"}, append([]string{"github.com/klauspost/compress/..."}, yaml...), "a source reads text over HTTP, plain or gzip, and from a file which endpoint a GPU serves"},
	"gpu/cgroup":               {[]string{"gpu", "policy"}, nil, "a source reads weir's own control group"},
	"gpu/script":               {[]string{"gpu", "policy"}, yaml, "a source reads a YAML curve"},
	"gpu/library":              {[]string{"gpu"}, nil, "keeps a C library that may hang at arm's length"},
	"gpu/dcgm":                 {[]string{"gpu", "gpu/library"}, []string{"github.com/NVIDIA/..."}, "the agent's reader of DCGM (cgo)"},
	"gpu/dcgm/dcgmtest":        {nil, nil, "makes a libdcgm.so.4 for tests"},
	"gpu/nvml":                 {[]string{"gpu", "gpu/library"}, []string{"github.com/NVIDIA/go-nvml/..."}, "the agent's reader of NVML (cgo)"},
	"proto/gpu/v1":             {nil, grpc, "generated: what an agent on a GPU node tells"},
	"gpu/agent":                {[]string{"gpu", "gpu/link", "policy", "proto/gpu/v1"}, grpc, "a source listens to an agent over gRPC"},
	"gpu/link":                 {[]string{"gpu", "policy", "internal/nopanic"}, grpc, "keeps a gRPC connection to a source"},
	"gpu/orca":                 {[]string{"gpu", "gpu/link", "policy"}, grpc, "a source hears load reports in answers, or over gRPC"},
	"gpu/sourcetest":           {[]string{"gpu", "policy"}, nil, "the suite that every source runs"},
	"admission/observertest":   {[]string{"admission", "identity", "policy"}, nil, "the suite that every observer runs"},
	"authz":                    {[]string{"identity", "policy", "internal/nopanic"}, append([]string{"github.com/lestrrat-go/jwx/v3/..."}, grpc...), "the front door verifies tokens"},
	"envoy":                    {[]string{"breaker", "policy"}, append(slices.Clone(grpc), yaml...), "the street: what Envoy has to be told, as messages and as YAML with comments"},
	"envoy/discovery":          {[]string{"policy", "internal/nopanic"}, append([]string{"sigs.k8s.io/yaml"}, yaml...), "where a cluster's endpoints are: files, DNS, policy"},
	"envoy/lint":               {[]string{"policy"}, append([]string{"sigs.k8s.io/yaml"}, append(yaml, grpc...)...), "what Envoy accepts silently and should not be"},
	"envoy/protect":            {[]string{"breaker", "policy"}, nil, "pure: from breaker states to settings"},
	"envoy/watch":              {[]string{"policy", "internal/nopanic"}, grpc, "what Envoys count of their clusters"},
	"envoy/xds":                {[]string{"envoy/discovery", "envoy/protect", "policy"}, grpc, "the control plane that Envoys connect to"},
	"breaker/bustest":          {[]string{"breaker", "policy"}, nil, "the suite that every bus runs"},
	"breaker/membus":           {[]string{"breaker"}, nil, "a bus inside one process"},
	"internal/nopanic":         {nil, nil, "makes a panic the error of a call, where bytes of a peer are read"},
	"internal/redisclient":     {[]string{"policy", "internal/nopanic"}, []string{"github.com/redis/go-redis/v9/..."}, "the one way to make a Redis client: quota store and bus mean the same by one setting"},
	"internal/buswire":         {[]string{"breaker", "internal/nopanic"}, nil, "what a replica's word looks like on a bus over a network, and when a lost bus is tried again"},
	"internal/redisbus":        {[]string{"breaker", "policy", "internal/buswire", "internal/nopanic", "internal/redisclient"}, []string{"github.com/redis/go-redis/v9/..."}, "a bus over Redis"},
	"internal/etcdbus":         {[]string{"breaker", "policy", "internal/buswire", "internal/nopanic"}, append([]string{"go.etcd.io/etcd/...", "go.uber.org/zap"}, grpc...), "a bus over etcd, whose client logs by zap and is told not to"},
	"extproc":                  {[]string{"admission", "identity", "policy", "extproc/body", "extproc/meter"}, grpc, "the hallway asks the desk and never a room"},
	"extproc/body":             {[]string{"admission", "identity", "policy"}, []string{"github.com/go-json-experiment/json/..."}, "request bodies"},
	"extproc/meter":            {[]string{"admission", "identity", "policy"}, []string{"github.com/go-json-experiment/json/...", "github.com/klauspost/compress/..."}, "answers"},
	"internal/reload":          {[]string{"policy"}, []string{"github.com/fsnotify/fsnotify"}, "files that change under us"},
	"internal/child":           {nil, nil, "keeps an agent of this machine running"},
	"internal/listen":          {[]string{"policy"}, nil, "sockets and certificates of what serves"},
	"internal/telemetry":       {append([]string{"quota/redisstore", "authz", "internal/nopanic"}, decision...), append([]string{"github.com/prometheus/...", "go.opentelemetry.io/..."}, grpc...), "what leaves the house as metrics and traces"},
	"internal/admin":           {append([]string{"internal/telemetry"}, decision...), []string{"github.com/prometheus/..."}, "the operator's window"},
	"internal/dashboard":       {nil, nil, "tables of panels; its test in internal/telemetry holds them against the metrics"},
	"internal/modelsim":        {nil, append([]string{"golang.org/x/net/..."}, grpc...), "a model pool to practise on; knows nothing of weir"},
	"internal/simulate":        {append([]string{"quota/memstore", "internal/modelsim"}, decision...), yaml, "the world played against the cores, by scenarios in YAML"},
	"internal/simulate/report": {[]string{"internal/simulate", "policy"}, nil, "what a run looks like; its chart library is a file"},
	"internal/demo":            {[]string{"examples", "internal/modelsim"}, nil, "the show: starts processes and looks at them from outside"},
	"internal/envoytest":       {[]string{"..."}, []string{"..."}, "real neighbours on loopback for tests"},
	"cmd/weir":                 {[]string{"..."}, []string{"..."}, "the keys: wires everything"},
	"cmd/weir-gpu-agent":       {[]string{"gpu", "gpu/agent", "gpu/dcgm", "gpu/library", "gpu/nvml", "gpu/script", "internal/listen", "policy", "proto/gpu/v1"}, append([]string{"github.com/prometheus/client_golang/...", "github.com/spf13/cobra"}, grpc...), "the agent: the one binary with cgo, on GPU nodes"},
	"examples":                 {[]string{"..."}, []string{"..."}, "tests of the show flat"},
	"bench":                    {[]string{"..."}, []string{"..."}, "the measuring harness"},
}

// TestArrows reads every Go file of the house and holds its imports against
// the table. Tests of a package may import what the package may, plus suites,
// test libraries and, for black-box tests, any implementation below them.
func TestArrows(t *testing.T) {
	seen := map[string]bool{}
	walkGo(t, func(path, folder string) {
		row, ok := lookup(folder)
		if !ok {
			t.Errorf("%s: folder %q is not in the table of arrows (arch_test.go): add a row with its reason", path, folder)
			return
		}
		seen[folder] = true
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			return
		}
		for _, spec := range f.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			if why := forbidden(imp, row); why != "" {
				t.Errorf("%s imports %s: %s (%s is: %s)", path, imp, why, folder, row.why)
			}
		}
	})
	for folder := range arrows {
		if !seen[folder] && folder != "." {
			t.Logf("no Go file in %q", folder)
		}
	}
}

// TestArrowsSeeAViolation guards the guard.
func TestArrowsSeeAViolation(t *testing.T) {
	for _, c := range []struct{ folder, imp string }{
		{"policy", module + "/identity"},
		{"queue", module + "/breaker"},
		{"admission", module + "/extproc"},
		{"extproc", module + "/queue"},
		{"quota", "github.com/redis/go-redis/v9"},
		{"admission", "google.golang.org/grpc/codes"},
	} {
		row, ok := lookup(c.folder)
		if !ok || forbidden(c.imp, row) == "" {
			t.Errorf("%s importing %s went through", c.folder, c.imp)
		}
	}
}

func lookup(folder string) (room, bool) {
	if row, ok := arrows[folder]; ok {
		return row, true
	}
	for _, tree := range []string{"examples", "bench", "internal/modelsim"} {
		if strings.HasPrefix(folder, tree+"/") {
			return arrows[tree], true
		}
	}
	return room{}, false
}

// forbidden says why row may not import imp; "" = it may.
func forbidden(imp string, row room) string {
	switch own, ours := strings.CutPrefix(imp, module+"/"); {
	case ours && !allowed(own, row.ours):
		return "this arrow is not in the table"
	case !ours && imp != module && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") && !allowed(imp, row.third):
		return "this third party does not belong here"
	}
	return ""
}

func allowed(imp string, list []string) bool {
	return slices.ContainsFunc(list, func(a string) bool {
		tree, isTree := strings.CutSuffix(a, "...")
		if isTree {
			return imp == strings.TrimSuffix(tree, "/") || strings.HasPrefix(imp, tree)
		}
		return imp == a
	})
}

// walkGo calls fn with each Go file of ours and its folder.
func walkGo(t *testing.T, fn func(path, folder string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin"):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, ".go"):
			fn(path, filepath.ToSlash(filepath.Dir(path)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFilesAreShort keeps rooms liveable: no Go file over 400 lines.
func TestFilesAreShort(t *testing.T) {
	walkGo(t, func(path, _ string) {
		if strings.HasSuffix(path, ".pb.go") {
			return
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			return
		}
		if n := bytes.Count(data, []byte("\n")); n > 400 {
			t.Errorf("%s has %d lines; a file stays under 400", path, n)
		}
	})
}
