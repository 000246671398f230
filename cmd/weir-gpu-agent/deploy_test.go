package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func file(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// judged holds a command line against the real flags.
func judged(t *testing.T, where string, args []string) {
	t.Helper()
	c := command()
	c.SetArgs(append(slices.Clone(args), "--check"))
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Errorf("%s: %v", where, err)
	}
}

// TestImage reads the image's recipe: cgo, a base with glibc, nobody as user.
func TestImage(t *testing.T) {
	recipe := file(t, "Dockerfile.agent")
	stages := regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(recipe, -1)
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(file(t, "go.mod"))[1]
	if len(stages) != 2 || stages[0][1] != "golang:"+goVersion+"-bookworm" || stages[1][1] != "debian:bookworm-slim" {
		t.Errorf("stages %v: want Go %s on the Debian of the last stage, whose glibc it links to", stages, goVersion)
	}
	for _, want := range []string{"CGO_ENABLED=1", "-trimpath", "USER 65534:65534", `ENTRYPOINT ["/usr/local/bin/weir-gpu-agent"]`, "./cmd/weir-gpu-agent", "NVIDIA_DRIVER_CAPABILITIES=utility"} {
		if !strings.Contains(recipe, want) {
			t.Errorf("Dockerfile.agent misses %s", want)
		}
	}
}

// TestUnit holds the systemd unit to what the agent needs, and asks systemd
// where the machine has it.
func TestUnit(t *testing.T) {
	const path = "build/weir-gpu-agent.service"
	seen := map[string]string{}
	for line := range strings.Lines(file(t, path)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			seen[key] = value
		}
	}
	line := strings.Fields(seen["ExecStart"])
	if len(line) == 0 || line[0] != "/usr/local/bin/weir-gpu-agent" {
		t.Fatalf("ExecStart is %q", seen["ExecStart"])
	}
	judged(t, path, line[1:])
	for key, want := range map[string]string{
		"KillSignal": "SIGTERM", "TimeoutStopSec": "10s", "Restart": "always", "NoNewPrivileges": "yes",
		"RuntimeDirectory": "weir-gpu-agent", "UnsetEnvironment": "LD_BIND_NOW", "WantedBy": "multi-user.target",
	} {
		if seen[key] != want {
			t.Errorf("%s: %s is %q, want %q", path, key, seen[key], want)
		}
	}
	if seen["PrivateDevices"] != "" {
		t.Error("PrivateDevices hides the GPUs")
	}
	if systemd, err := exec.LookPath("systemd-analyze"); err == nil {
		out, err := exec.Command(systemd, "verify", "--man=no", "../../"+path).CombinedOutput()
		// The binary is not installed on a test machine; anything else counts.
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "weir-gpu-agent") && !strings.Contains(line, "is not executable") {
				t.Errorf("systemd-analyze: %s (%v)", strings.TrimSpace(line), err)
			}
		}
	}
}

// The part of Kubernetes' types that the manifest uses: a key that is not here
// is misspelt or in the wrong place.
type (
	object struct {
		APIVersion                   string   `json:"apiVersion"`
		Kind                         string   `json:"kind"`
		Metadata                     meta     `json:"metadata"`
		Spec                         *daemons `json:"spec"`
		AutomountServiceAccountToken *bool    `json:"automountServiceAccountToken"`
	}
	meta struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	}
	daemons struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		UpdateStrategy struct {
			Type          string `json:"type"`
			RollingUpdate struct {
				MaxUnavailable string `json:"maxUnavailable"`
			} `json:"rollingUpdate"`
		} `json:"updateStrategy"`
		Template struct {
			Metadata meta `json:"metadata"`
			Spec     pod  `json:"spec"`
		} `json:"template"`
	}
	pod struct {
		ServiceAccountName            string            `json:"serviceAccountName"`
		AutomountServiceAccountToken  *bool             `json:"automountServiceAccountToken"`
		RuntimeClassName              string            `json:"runtimeClassName"`
		PriorityClassName             string            `json:"priorityClassName"`
		TerminationGracePeriodSeconds int               `json:"terminationGracePeriodSeconds"`
		NodeSelector                  map[string]string `json:"nodeSelector"`
		Tolerations                   []struct {
			Key, Operator, Effect string
		} `json:"tolerations"`
		SecurityContext struct {
			RunAsNonRoot                   bool
			RunAsUser, RunAsGroup, FSGroup int
			SeccompProfile                 struct{ Type string }
		} `json:"securityContext"`
		Containers []container `json:"containers"`
		Volumes    []struct {
			Name   string `json:"name"`
			Secret struct {
				SecretName string `json:"secretName"`
			} `json:"secret"`
		} `json:"volumes"`
	}
	container struct {
		Name  string     `json:"name"`
		Image string     `json:"image"`
		Args  []string   `json:"args"`
		Env   []variable `json:"env"`
		Ports []struct {
			Name          string `json:"name"`
			ContainerPort int    `json:"containerPort"`
			HostPort      int    `json:"hostPort"`
		} `json:"ports"`
		LivenessProbe   probe `json:"livenessProbe"`
		ReadinessProbe  probe `json:"readinessProbe"`
		Resources       struct{ Requests, Limits map[string]string }
		SecurityContext struct {
			AllowPrivilegeEscalation, ReadOnlyRootFilesystem bool
			Capabilities                                     struct{ Drop []string }
		} `json:"securityContext"`
		VolumeMounts []struct {
			Name, MountPath string
			ReadOnly        bool
		} `json:"volumeMounts"`
	}
	variable struct {
		Name      string `json:"name"`
		Value     string `json:"value"`
		ValueFrom struct {
			FieldRef struct {
				FieldPath string `json:"fieldPath"`
			} `json:"fieldRef"`
		} `json:"valueFrom"`
	}
	probe struct {
		HTTPGet struct {
			Path, Port, Scheme string
		} `json:"httpGet"`
		PeriodSeconds int `json:"periodSeconds"`
	}
)

// TestManifest reads the DaemonSet strictly: its flags are the agent's, its
// files are mounted, its probes meet pages that there are, its ports are those
// that it listens on.
func TestManifest(t *testing.T) {
	kinds := map[string]object{}
	for _, doc := range bytes.Split([]byte(file(t, "examples/kubernetes/gpu-agent.yaml")), []byte("\n---\n")) {
		var o object
		if err := yaml.UnmarshalStrict(doc, &o); err != nil {
			t.Fatal(err)
		}
		kinds[o.APIVersion+" "+o.Kind] = o
	}
	account, set := kinds["v1 ServiceAccount"], kinds["apps/v1 DaemonSet"]
	if account.Metadata.Name == "" || set.Spec == nil {
		t.Fatalf("kinds %v", kinds)
	}
	p := set.Spec.Template.Spec
	if p.ServiceAccountName != account.Metadata.Name || account.Metadata.Namespace != set.Metadata.Namespace {
		t.Error("the pods' service account is not the one above")
	}
	for k, v := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Metadata.Labels[k] != v {
			t.Errorf("the selector wants %s=%s of pods, which do not have it", k, v)
		}
	}
	if !p.SecurityContext.RunAsNonRoot || p.SecurityContext.RunAsUser != 65534 || len(p.Containers) != 1 {
		t.Errorf("security %+v of %d containers", p.SecurityContext, len(p.Containers))
	}
	c := p.Containers[0]
	judged(t, "gpu-agent.yaml", c.Args)
	ports := map[string]int{}
	for _, port := range c.Ports {
		ports[port.Name] = port.ContainerPort
	}
	mounted := map[string]bool{}
	for _, m := range c.VolumeMounts {
		mounted[m.MountPath] = m.ReadOnly && len(p.Volumes) == 1 && p.Volumes[0].Name == m.Name
	}
	for _, arg := range c.Args {
		flag, value, _ := strings.Cut(arg, "=")
		switch _, port, _ := strings.Cut(value, ":"); {
		case flag == "--listen" && port != "9411" || ports["grpc"] != 9411,
			flag == "--metrics" && port != "9410" || ports["metrics"] != 9410:
			t.Errorf("%s does not meet the ports %v", arg, ports)
		case strings.HasPrefix(value, "/") && !mounted[value[:strings.LastIndexByte(value, '/')]]:
			t.Errorf("%s is not mounted", arg)
		case strings.Contains(value, "$(") && !slices.ContainsFunc(c.Env, func(e variable) bool {
			return value == "$("+e.Name+")" && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName"
		}):
			t.Errorf("%s is not in env", arg)
		}
	}
	for want, got := range map[string]probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if got.HTTPGet.Path != want || got.HTTPGet.Port != "metrics" || got.HTTPGet.Scheme != "HTTPS" {
			t.Errorf("probe %+v, want %s", got, want)
		}
	}
}
