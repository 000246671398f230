package weir

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDockerfileIsStaticAndUnprivileged reads the image's recipe: what it
// promises is what the binary needs.
func TestDockerfileIsStaticAndUnprivileged(t *testing.T) {
	recipe := read(t, "Dockerfile")
	var last string // FROM of the final stage
	for line := range strings.Lines(recipe) {
		if from, ok := strings.CutPrefix(strings.TrimSpace(line), "FROM "); ok {
			last = from
		}
	}
	if last != "scratch" {
		t.Errorf("the last stage is %q, want scratch", last)
	}
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "USER 65534:65534", `ENTRYPOINT ["/weir"]`, "./cmd/weir", "ca-certificates.crt"} {
		if !strings.Contains(recipe, want) {
			t.Errorf("Dockerfile misses %s", want)
		}
	}
	mod := read(t, "go.mod")
	var version string
	for line := range strings.Lines(mod) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "go "); ok {
			version = strings.Join(strings.SplitN(v, ".", 3)[:2], ".")
		}
	}
	if !strings.Contains(recipe, "FROM golang:"+version) {
		t.Errorf("Dockerfile does not build with Go %s, as go.mod says", version)
	}
}

// TestUnitFile holds the systemd unit to its own rules, and asks systemd where
// the machine has it.
func TestUnitFile(t *testing.T) {
	const path = "build/weir.service"
	section, seen := "", map[string]string{}
	for line := range strings.Lines(read(t, path)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = line
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok {
				t.Errorf("%s: %q is no setting", path, line)
			}
			seen[section+key] = value
		}
	}
	for key, want := range map[string]string{
		"[Service]ExecStart":       "/usr/local/bin/weir serve --config /etc/weir/weir.yaml",
		"[Service]KillSignal":      "SIGTERM",
		"[Service]TimeoutStopSec":  "40s", // above server.drain's default of 25s
		"[Service]NoNewPrivileges": "yes",
		"[Install]WantedBy":        "multi-user.target",
	} {
		if seen[key] != want {
			t.Errorf("%s: %s is %q, want %q", path, key, seen[key], want)
		}
	}
	if systemd, err := exec.LookPath("systemd-analyze"); err == nil {
		out, err := exec.Command(systemd, "verify", "--man=no", path).CombinedOutput()
		// The binary is not installed on a test machine; anything else counts.
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "weir.service") && !strings.Contains(line, "is not executable") {
				t.Errorf("systemd-analyze: %s (%v)", strings.TrimSpace(line), err)
			}
		}
	}
}
