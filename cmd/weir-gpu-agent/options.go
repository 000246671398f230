package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/policy"
)

// judge holds the flags against each other.
func (o *options) judge() error {
	switch o.source {
	case "auto", "dcgm", "nvml":
		if o.script != "" {
			return fmt.Errorf("--script is not used by --source %s", o.source)
		}
	case "script":
		if o.script == "" {
			return errors.New("--source script needs --script FILE")
		}
	default:
		return fmt.Errorf("--source must be auto, dcgm, nvml or script, got %q", o.source)
	}
	if o.every < minEvery || o.every > maxEvery {
		return fmt.Errorf("--every must be in %v..%v, got %v", minEvery, maxEvery, o.every)
	}
	if (o.cert == "") != (o.key == "") {
		return errors.New("--tls-cert and --tls-key go together")
	}
	if o.clientCA != "" && o.cert == "" {
		return errors.New("--client-ca needs --tls-cert and --tls-key")
	}
	if new(slog.LevelVar).UnmarshalText([]byte(o.logLevel)) != nil {
		return fmt.Errorf("--log-level must be debug, info, warn or error, got %q", o.logLevel)
	}
	if err := o.judgeAddress("--listen", o.listen); err != nil {
		return err
	}
	if o.metrics == "" {
		return nil
	}
	if strings.HasPrefix(o.metrics, "fd:") {
		return errors.New("--metrics must be host:port or unix:/path")
	}
	return o.judgeAddress("--metrics", o.metrics)
}

// judgeAddress demands TLS and a proof of the client wherever others than this
// machine may connect.
func (o *options) judgeAddress(flag, address string) error {
	if fd, ok := strings.CutPrefix(address, "fd:"); ok {
		if n, err := strconv.Atoi(fd); err != nil || n < 3 || n > 1024 {
			return fmt.Errorf("%s: fd:N must be in 3..1024, got %q", flag, address)
		}
		return nil
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if path == "" {
			return fmt.Errorf("%s: unix: needs a path", flag)
		}
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s must be host:port or unix:/path, got %q", flag, address)
	}
	switch {
	case host == "localhost" || net.ParseIP(host).IsLoopback():
	case o.cert == "":
		return fmt.Errorf("%s %s is open to other machines: needs --tls-cert and --tls-key", flag, address)
	case o.clientCA == "" && o.tokenFile == "":
		return fmt.Errorf("%s %s is open to other machines: needs --client-ca or --token-file", flag, address)
	}
	return nil
}

// tls is what listen.TLS reads; nil = plain text. Clients' certificates are
// asked for by the guard, for health checks have none.
func (o *options) tls() *policy.TLS {
	if o.cert == "" {
		return nil
	}
	return &policy.TLS{Cert: o.cert, Key: o.key, ClientCA: o.clientCA}
}
