package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnvoyCluster(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte(defaultPolicy(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", 0, "- name: chat-fp16"},
		{"--cluster chat-int8 --peak-qps 500 --mean 2s --host 10.0.0.8:8000", 0, "500 peak QPS x 2 s x 2 = 2000 connections"},
		{"--cluster chat-int8 --host 10.0.0.8:8000", 0, `socket_address: {address: "10.0.0.8", port_value: 8000}`},
		{"--release 1.40", 0, "for Envoy 1.40"},
		{"--cluster chat", 2, `cluster "chat": no such cluster in the policy; it has chat-dyn, chat-fp16, chat-int8`},
		{"--release 1.35", 2, "--release: release \"1.35\""},
		{"--peak-qps 500", 2, "both or none"},
		{"--peak-qps -1 --mean 2s", 2, "--peak-qps -1: must be above 0"},
		{"--peak-qps NaN --mean 2s", 2, "--peak-qps NaN: must be above 0"},
		{"--peak-qps 5 --mean 0s", 2, "--mean 0s: must be 1ms to 1h"},
		{"--permits-keepalive 0s", 2, "--permits-keepalive 0s: must be 1s to 24h"},
		{"--health health", 2, `--health "health": must be a path`},
		{"--host 10.0.0.8:8000", 2, "--host: needs one --cluster"},
		{"--cluster chat-int8 --host 10.0.0.8", 2, `--host "10.0.0.8": must be host:port`},
		{"--cluster chat-int8 --host 10.0.0.8:0", 2, `--host "10.0.0.8:0": must be host:port`},
		{"--cluster chat-int8 --host a\u202eb:80", 2, "must be host:port"},
		{"--cluster chat-int8 --host http://a:80", 2, "must be host:port"},
		{"--cluster chat-int8 --host a\x1b:80", 2, "must be host:port"},
		{"--health /a\u202eb", 2, "must be a path"},
		{"--health /a\x00b", 2, "must be a path"},
		{"--health /h?full=1", 0, `path: "/h?full=1"`},
		{"--cluster chat-int8 --host [2001:db8::1]:80 --host gpu-7.a.example:80", 0, "gpu-7.a.example"},
		{"surplus", 2, "name one policy file: FILE or --config FILE"},
		{"--nonsense", 2, "nonsense"},
	} {
		t.Run(c.args, func(t *testing.T) {
			out, errOut, code := execute(t, append([]string{"envoy", "cluster", "--config", file}, strings.Fields(c.args)...)...)
			if code != c.code || !strings.Contains(out+errOut, c.says) {
				t.Errorf("exit code %d, want %d; says %q, want it to name %q", code, c.code, out+errOut, c.says)
			}
		})
	}
	if _, errOut, code := execute(t, "envoy", "cluster"); code != 2 || !strings.Contains(errOut, "--config") {
		t.Errorf("without --config: exit code %d, %q", code, errOut)
	}
	byFlag, _, _ := execute(t, "envoy", "cluster", "--config", file)
	if out, errOut, code := execute(t, "envoy", "cluster", file); code != 0 || out == "" || out != byFlag {
		t.Errorf("with the file as argument: exit code %d, %q; %d bytes, %d by --config", code, errOut, len(out), len(byFlag))
	}
	if out, errOut, code := execute(t, "envoy", "snippet", "--config", file); code != 0 || !strings.Contains(out, "http_filters") {
		t.Errorf("snippet --config: exit code %d, %q", code, errOut)
	}
	if _, errOut, code := execute(t, "envoy", "cluster", "--config", file+"x"); code != 1 || !strings.Contains(errOut, "no such file") {
		t.Errorf("without the file: exit code %d, %q", code, errOut)
	}
}
