package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/quota/redisstore"
)

// HouseStats are the counters that rooms keep themselves, read at scrape time.
type HouseStats struct {
	Tokens  authz.Stats
	Streams int64             // open ext_proc streams
	Store   *redisstore.Stats // nil for the memory store

	LogDropped uint64 // log lines that were never written

	Unlogged, Unexplained admission.Unrecorded // refusals left out of the log, and of explain
}

// House registers the series of HouseStats.
func (m *Metrics) House(stats func() HouseStats) { m.Registry.MustRegister(&house{stats}) }

type house struct{ stats func() HouseStats }

func houseDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, labels, nil)
}

// The series of the house, in the order of docs/metrics.md.
var (
	logDropped    = houseDesc("log_dropped_total", "Log lines dropped because nobody took them.")
	unrecorded    = houseDesc("refusals_unrecorded_total", "Refusals left out of the log, and of what explain keeps (telemetry.refusals), by place and whether the caller had a verified identity.", "place", "verified")
	streams       = houseDesc("extproc_streams", "Open ext_proc streams.")
	tokenHits     = houseDesc("token_cache_hits_total", "Tokens judged from memory, by verdict.", "verdict")
	tokenMisses   = houseDesc("token_cache_misses_total", "Tokens whose signature was verified.")
	jwksKeys      = houseDesc("jwks_keys", "Usable keys.", "issuer")
	jwksAge       = houseDesc("jwks_age_seconds", "Time since the key set was last known to be right.", "issuer")
	jwksFetches   = houseDesc("jwks_fetches_total", "Fetches of a key set.", "issuer")
	jwksFailed    = houseDesc("jwks_failed_total", "Fetches and reloads of a key set that failed.", "issuer")
	storeAway     = houseDesc("store_away", "1 while the shared store is away and limits are decided by the local share.")
	storeLocal    = houseDesc("store_local_decisions_total", "Decisions by the local share, by what was wrong.", "reason")
	storeRemote   = houseDesc("store_decisions_total", "Decisions by the shared store.")
	storeOutages  = houseDesc("store_outages_total", "How often the shared store went away.")
	storePending  = houseDesc("store_pending", "Requests that the store has yet to be told of.")
	storeReplayed = houseDesc("store_replayed_total", "Requests told to the store after it came back.")
	storeDropped  = houseDesc("store_dropped_total", "Requests that the store will never be told of: the journal was full, or it refused them.")
	storeLost     = houseDesc("store_lost_total", "Counters that had vanished although they should be there: evicted, or lost in a fail-over.")
)

// Describe sends nothing: issuers follow the policy.
func (h *house) Describe(chan<- *prometheus.Desc) {}

// Collect reads the counters once.
func (h *house) Collect(out chan<- prometheus.Metric) {
	s := h.stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	count(logDropped, s.LogDropped)
	count(unrecorded, s.Unlogged.Anonymous, "log", "false")
	count(unrecorded, s.Unlogged.Tenants, "log", "true")
	count(unrecorded, s.Unexplained.Anonymous, "explain", "false")
	count(unrecorded, s.Unexplained.Tenants, "explain", "true")
	gauge(streams, float64(s.Streams))
	count(tokenHits, s.Tokens.Hits, "accepted")
	count(tokenHits, s.Tokens.RefusedHits, "refused")
	count(tokenMisses, s.Tokens.Misses)
	for _, k := range s.Tokens.KeySets {
		gauge(jwksKeys, float64(k.Keys), k.Issuer)
		gauge(jwksAge, k.Age.Seconds(), k.Issuer)
		count(jwksFetches, k.Fetches, k.Issuer)
		count(jwksFailed, k.Failed, k.Issuer)
	}
	if s.Store != nil {
		away := 0.
		if s.Store.Away {
			away = 1
		}
		gauge(storeAway, away)
		for reason, n := range s.Store.Local {
			count(storeLocal, n, reason)
		}
		count(storeRemote, s.Store.Remote)
		count(storeOutages, s.Store.Outages)
		gauge(storePending, float64(s.Store.Pending))
		count(storeReplayed, s.Store.Replayed)
		count(storeDropped, s.Store.Dropped)
		count(storeLost, s.Store.Lost)
	}
}
