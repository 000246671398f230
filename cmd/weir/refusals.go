package main

import (
	"context"
	"time"

	"github.com/weirproxy/weir/admission"
)

// refusalsEvery is how often the log says how many refusals it left out.
const refusalsEvery = 10 * time.Second

// recorded reports whether a refusal gets its line in the log.
func (h *house) recorded(r *admission.Request, reason admission.Reason) bool {
	tenant := ""
	if r.Identity != nil {
		tenant = r.Identity.Tenant
	}
	return h.refusals.Keep(time.Now(), &h.policy.Current().Telemetry.Refusals, tenant, reason)
}

// followRefusals says what was left out, until ctx ends and then once more.
func (h *house) followRefusals(ctx context.Context) {
	ticker := time.NewTicker(refusalsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			h.tellRefusals()
			return
		case <-ticker.C:
			h.tellRefusals()
		}
	}
}

// tellRefusals writes a line for each reason of which some were left out.
func (h *house) tellRefusals() {
	h.refusals.Untold(func(anonymous bool, r admission.Reason, n uint64) {
		h.log.Info("more refusals, without a line of their own", "reason", r.String(), "more", n, "verified", !anonymous)
	})
}
