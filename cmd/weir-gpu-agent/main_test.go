package main

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// asAgent makes the test binary the agent, for tests that need a process.
const asAgent = "WEIR_GPU_AGENT_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		os.Exit(run(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// An address that others can reach needs TLS and a proof of the client; what
// does not fit together is refused with exit code 2.
func TestFlags(t *testing.T) {
	for line, want := range map[string]string{
		"":                                       "",
		"--source script --script curve.yaml":    "",
		"--listen unix:/run/a.sock --metrics=":   "",
		"--listen [::1]:1 --metrics localhost:2": "",
		"--listen fd:3":                          "",
		"--listen 10.0.0.1:1 --tls-cert c --tls-key k --client-ca ca": "",
		"--listen 0.0.0.0:1 --tls-cert c --tls-key k --token-file t":  "",
		"--source cuda":                        "--source must be auto",
		"--source script":                      "--script FILE",
		"--script curve.yaml":                  "--script is not used",
		"--every 10ms":                         "--every must be in",
		"--every 1":                            "invalid argument",
		"--listen 0.0.0.0:1":                   "needs --tls-cert",
		"--listen :1":                          "needs --tls-cert",
		"--metrics 10.0.0.1:1":                 "needs --tls-cert",
		"--listen node:1 --token-file t":       "needs --tls-cert",
		"--listen :1 --tls-cert c --tls-key k": "needs --client-ca or --token-file",
		"--tls-cert c":                         "go together",
		"--client-ca c":                        "--client-ca needs",
		"--listen fd:0":                        "fd:N",
		"--metrics fd:3":                       "--metrics must be",
		"--listen 9411":                        "--listen must be",
		"--listen unix:":                       "needs a path",
		"--log-level loud":                     "--log-level must be",
		"--colour":                             "unknown flag",
		"serve":                                "unknown command",
	} {
		c := command()
		c.SetArgs(append(strings.Fields(line), "--check"))
		err := c.ExecuteContext(t.Context())
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", line, err, want)
		case want != "":
			if _, ok := err.(usageError); !ok {
				t.Errorf("%q: %T is not exit code 2", line, err)
			}
		}
	}
}
