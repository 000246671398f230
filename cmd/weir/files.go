package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/scrape"
	"github.com/weirproxy/weir/internal/listen"
	"github.com/weirproxy/weir/policy"
)

// checkFiles reads the files that serve will read at its start: key sets, the
// certificate, telemetry scripts. A file that is not on this machine is a note,
// because a policy is often checked elsewhere; one that is there and wrong is
// an error. Nothing is fetched and nothing stays open.
func checkFiles(p *policy.Policy) (missing []error, err error) {
	var wrong []error
	judge := func(err error) {
		switch {
		case err == nil:
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, err)
		default:
			wrong = append(wrong, err)
		}
	}
	for i := range p.Identity.Issuers {
		if p.Identity.Issuers[i].JWKS.File != "" {
			judge(checkKeySet(p.Identity, i))
		}
	}
	if p.Server.TLS != nil {
		if _, err := listen.TLS(p.Server.TLS); err != nil {
			judge(fmt.Errorf("server.%w", err))
		}
	}
	for i := range p.Pools {
		for k, t := range p.Pools[i].Telemetry {
			source, err := openSource(p.Pools[i].Name, t, p.Engines, new(children), new(scrape.Buffers))
			if err == nil && t.Kind == policy.KindDCGM {
				_, err = os.Stat(agentPath(t))
			}
			if err == nil {
				err = closeSources([]gpu.Target{{Source: source}})
			}
			if err != nil {
				judge(fmt.Errorf("pools[%d].telemetry[%d]: %w", i, k, err))
			}
		}
	}
	return missing, errors.Join(wrong...)
}

// checkKeySet reads the key set file of issuer i.
func checkKeySet(id policy.Identity, i int) error {
	id.Issuers = slices.Clone(id.Issuers[i : i+1])
	v, err := authz.NewVerifier(&id, authz.Options{})
	if err != nil {
		return fmt.Errorf("identity.issuers[%d]: %w", i, errors.Unwrap(err)) // the verifier knows one issuer, number 0
	}
	v.Close()
	return nil
}
