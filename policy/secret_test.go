package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"go.yaml.in/yaml/v3"
)

// printed is a policy in every form that could get into a log or an answer.
func printed(t *testing.T, p *Policy) map[string]string {
	t.Helper()
	asJSON, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(p.Server)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l := slog.New(slog.NewJSONHandler(&log, nil))
	l.Info("policy", "policy", p, "server", p.Server, "token", p.Server.AdminToken)
	l = slog.New(slog.NewTextHandler(&log, nil))
	l.Info("policy", "policy", *p, "server", p.Server, "token", p.Server.AdminToken)
	return map[string]string{
		"%v":    fmt.Sprintf("%v", p),
		"%+v":   fmt.Sprintf("%+v", *p),
		"%#v":   fmt.Sprintf("%#v", *p),
		"%s":    fmt.Sprintf("%s", p.Server.AdminToken),
		"%x":    fmt.Sprintf("%x", p.Server.AdminToken),
		"%+v 2": fmt.Sprintf("%+v", p.Store.Redis),
		"%#v 2": fmt.Sprintf("%#v", struct{ s Secret }{p.Server.AdminToken}),
		"%v 3":  fmt.Sprintf("%v", struct{ s *Secret }{&p.Server.AdminToken}),
		"json":  string(asJSON),
		"yaml":  string(asYAML),
		"dump":  string(p.Dump()),
		"log":   log.String(),
	}
}
