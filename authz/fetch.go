package authz

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/weirproxy/weir/internal/nopanic"
	"github.com/weirproxy/weir/policy"
)

// Times of fetching that are no setting.
const (
	firstRetry = 250 * time.Millisecond // doubled after each failure, up to minRefresh
	keyWait    = 100 * time.Millisecond // longest a token with an unknown key waits for the fetch it caused
)

// run fetches now, before each refresh ends, and when asked, until ctx ends.
// It is the only place that fetches, so there is one fetch at a time.
func (k *KeySet) run(ctx context.Context) {
	retry := firstRetry
	for {
		wait := k.refreshIn()
		if k.once(ctx) {
			retry = firstRetry
		} else {
			wait = k.jitter(retry, 0.2)
			retry = min(2*retry, max(k.source.MinRefresh, firstRetry))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-k.ask:
			timer.Stop()
		}
	}
}

// refreshIn leaves room for one slow fetch before the refresh time is over.
// Replicas do not ask at the same instant.
func (k *KeySet) refreshIn() time.Duration {
	r := k.source.Refresh - k.source.Timeout
	r = max(r, k.source.Refresh/2)
	return k.jitter(r, 0.1)
}

// jitter shortens d by up to a share of it.
func (k *KeySet) jitter(d time.Duration, share float64) time.Duration {
	return d - time.Duration(k.random.Float64()*share*float64(d))
}

// once makes one fetch and wakes those who wait for it.
func (k *KeySet) once(ctx context.Context) bool {
	k.mu.Lock()
	if k.pending == nil {
		k.pending = make(chan struct{})
	}
	select {
	case <-k.ask: // this is the fetch that was asked for
	default:
	}
	k.tried = time.Now()
	k.mu.Unlock()
	err := k.load(ctx)
	if err != nil && ctx.Err() == nil {
		k.fail(err)
		k.log.Warn("key set not fetched", "source", k.source.URL, "error", err)
	}
	k.mu.Lock()
	close(k.pending)
	k.pending = nil
	k.mu.Unlock()
	return err == nil
}

func (k *KeySet) load(ctx context.Context) (err error) {
	defer nopanic.Catch(&err)
	k.fetches.Add(1)
	ctx, cancel := context.WithTimeout(ctx, k.source.Timeout)
	defer cancel()
	asked := time.Now()
	data, err := k.fetch(ctx)
	if err != nil {
		return err
	}
	set, err := k.parse(data)
	if err != nil {
		return err
	}
	k.store(set, data, asked)
	return nil
}

// refetch asks for a fetch on behalf of a token whose key is unknown and
// waits for it for a short time; if a fetch is on its way it waits for that.
// It reports false at once where the last fetch is younger than minRefresh.
func (k *KeySet) refetch(ctx context.Context) bool {
	if k.fetch == nil {
		return false
	}
	k.mu.Lock()
	if k.pending == nil {
		if time.Since(k.tried) < k.source.MinRefresh {
			k.mu.Unlock()
			return false
		}
		k.pending = make(chan struct{})
		select {
		case k.ask <- struct{}{}:
		default:
		}
	}
	pending := k.pending
	k.mu.Unlock()
	timer := time.NewTimer(keyWait)
	defer timer.Stop()
	select {
	case <-pending:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// fetcher gets a key set over HTTP.
type fetcher struct {
	url    string
	client *http.Client
}

func newFetcher(source policy.JWKS) (*fetcher, error) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        1,
		IdleConnTimeout:     30 * time.Second,
		TLSHandshakeTimeout: source.Timeout,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},

		MaxResponseHeaderBytes: 64 << 10,
	}
	if source.CA != "" {
		pool, err := policy.ReadCAs(source.CA)
		if err != nil {
			return nil, fmt.Errorf("key set %s: %w", source.URL, err)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &fetcher{source.URL, &http.Client{Transport: transport, CheckRedirect: checkRedirect}}, nil
}

// checkRedirect follows at most three redirects, and without TLS only within
// the host that the policy names: whoever sits between must not give us keys.
func checkRedirect(next *http.Request, via []*http.Request) error {
	if len(via) > 3 {
		return errors.New("too many redirects")
	}
	first := via[0].URL
	if next.URL.Scheme != "https" && (first.Scheme == "https" || next.URL.Host != first.Host) {
		return fmt.Errorf("redirected from %s://%s to %s://%s", first.Scheme, first.Host, next.URL.Scheme, next.URL.Host)
	}
	return nil
}

func (f *fetcher) get(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %d", resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err == nil && len(data) > maxKeySet {
		err = fmt.Errorf("larger than %d bytes", maxKeySet)
	}
	return data, err
}

func (f *fetcher) close() { f.client.CloseIdleConnections() }
