package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// profileTime is the length of a CPU profile.
const profileTime = 3 * time.Second

// profile writes a CPU profile of weir and one of its heap allocations under
// each shape, for go tool pprof.
func (h *harness) profile(ctx context.Context, o *options) error {
	if o.profile == "" {
		return nil
	}
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return err
	}
	for i := range h.shapes {
		s := &h.shapes[i]
		base := filepath.Join(o.profile, strings.ReplaceAll(s.name, "/", "-"))
		driven := make(chan error, 1)
		go func() {
			_, err := h.clients[s.weir].Run(ctx, s.calls, o.inFlight, profileTime+time.Second)
			driven <- err
		}()
		err := s.weir.save(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(profileTime.Seconds())), base+".cpu")
		if runErr := <-driven; err == nil {
			err = runErr
		}
		if err != nil {
			return err
		}
		if err := s.weir.save(ctx, "/debug/pprof/allocs", base+".allocs"); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) save(ctx context.Context, path, file string) error {
	data, err := s.get(ctx, path)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(data), 0o644)
}
