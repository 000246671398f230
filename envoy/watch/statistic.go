package watch

import (
	"strings"
	"time"
)

// stat is a statistic of a cluster that is read.
type stat uint8

const (
	cxActive stat = iota
	cxTotal
	cxDestroy
	cxCloseNotify
	cxConnectFail
	cxDestroyActive
	rqActive
	rqPending
	rqTotal
	rqReset
	rqEjected
	rqErrors
	rqTimeout
	rqRetry
	rqRetryOverflow
	rqPendingOverflow
	rqActiveOverflow
	members
	healthy
	numStats
)

// statNames are the names that Envoy gives them, by stat.
func statNames() [numStats]string {
	return [numStats]string{
		cxActive: "upstream_cx_active", cxTotal: "upstream_cx_total", cxDestroy: "upstream_cx_destroy",
		cxCloseNotify: "upstream_cx_close_notify", cxConnectFail: "upstream_cx_connect_fail",
		cxDestroyActive: "upstream_cx_destroy_remote_with_active_rq",
		rqActive:        "upstream_rq_active", rqPending: "upstream_rq_pending_active", rqTotal: "upstream_rq_total",
		rqReset: "upstream_rq_rx_reset", rqEjected: "upstream_rq_pending_failure_eject", rqErrors: "upstream_rq_5xx", rqTimeout: "upstream_rq_timeout",
		rqRetry: "upstream_rq_retry", rqRetryOverflow: "upstream_rq_retry_overflow",
		rqPendingOverflow: "upstream_rq_pending_overflow", rqActiveOverflow: "upstream_rq_active_overflow",
		members: "membership_total", healthy: "membership_healthy",
	}
}

// statOf finds a statistic by the last part of its name; numStats = not read.
// It is asked for each of many thousand names.
func statOf(name []byte) stat {
	switch string(name) {
	case "upstream_cx_active":
		return cxActive
	case "upstream_cx_total":
		return cxTotal
	case "upstream_cx_destroy":
		return cxDestroy
	case "upstream_cx_close_notify":
		return cxCloseNotify
	case "upstream_cx_connect_fail":
		return cxConnectFail
	case "upstream_cx_destroy_remote_with_active_rq":
		return cxDestroyActive
	case "upstream_rq_active":
		return rqActive
	case "upstream_rq_pending_active":
		return rqPending
	case "upstream_rq_total":
		return rqTotal
	case "upstream_rq_rx_reset":
		return rqReset
	case "upstream_rq_pending_failure_eject":
		return rqEjected
	case "upstream_rq_5xx":
		return rqErrors
	case "upstream_rq_timeout":
		return rqTimeout
	case "upstream_rq_retry":
		return rqRetry
	case "upstream_rq_retry_overflow":
		return rqRetryOverflow
	case "upstream_rq_pending_overflow":
		return rqPendingOverflow
	case "upstream_rq_active_overflow":
		return rqActiveOverflow
	case "membership_total":
		return members
	case "membership_healthy":
		return healthy
	}
	return numStats
}

// most is the largest value that is believed: what a float64 holds exactly.
const most = 1 << 53

// MaxClusters is how many clusters of one Envoy are read at most.
const MaxClusters = 10_000

// row is what one Envoy said of one cluster.
type row struct {
	cluster string
	values  [numStats]int64
	turn    uint64 // of the table, in which it was last said
	born    int64  // stamp of the flush that it came with first, maybe in parts
}

// table gathers the statistics of one Envoy, cluster by cluster. Not safe for
// concurrent use.
type table struct {
	watched map[string]struct{}
	rows    map[string]*row
	turn    uint64
	stamp   int64      // of the flush that is read; 0 = unknown, and nothing comes in parts
	said    []*row     // in this turn
	out     []Counters // of the last turn
	name    []byte     // of a cluster whose name lies in two parts
}

func newTable(watched map[string]struct{}) *table {
	return &table{watched: watched, rows: make(map[string]*row)}
}

// begin starts a turn. Where afresh, what was said before is no longer so;
// else a statistic that is not said again keeps its value.
func (t *table) begin(afresh bool) {
	t.turn++
	t.stamp = 0 // the sender's clock may have gone back
	t.said = t.said[:0]
	if afresh {
		for _, r := range t.rows {
			r.values = [numStats]int64{}
		}
	}
}

// put notes a statistic. A cluster's name may come in two parts: with tags
// Envoy cuts it at its first dot, and the rest stays in the statistic's name.
func (t *table) put(cluster, rest []byte, s stat, value int64) {
	if len(rest) > 0 {
		t.name = append(append(append(t.name[:0], cluster...), '.'), rest...)
		cluster = t.name
	}
	r, ok := t.rows[string(cluster)]
	if !ok {
		if _, ok = t.watched[string(cluster)]; !ok || len(t.rows) >= MaxClusters {
			return
		}
		r = &row{cluster: string(cluster), born: t.stamp}
		t.rows[r.cluster] = r
	}
	if r.turn != t.turn {
		r.turn = t.turn
		t.said = append(t.said, r)
	}
	r.values[s] = value
}

// watch changes which clusters are read. What was said of those that stay is
// kept.
func (t *table) watch(watched map[string]struct{}) {
	t.watched = watched
	for name := range t.rows {
		if _, ok := watched[name]; !ok {
			delete(t.rows, name)
		}
	}
}

// end gives the turn's rows, good until the next. A flush may come in several
// messages, and a row of which only a part was said would look like a restart:
// it is held back until the flush after its first.
func (t *table) end(node string, at time.Time) []Counters {
	t.out = t.out[:0]
	for _, r := range t.said {
		if t.stamp != 0 && r.born == t.stamp {
			continue
		}
		v := &r.values
		t.out = append(t.out, Counters{
			Node: node, Cluster: r.cluster, At: at,
			ActiveConnections: v[cxActive], ActiveRequests: v[rqActive], Pending: v[rqPending],
			Connections: v[cxTotal], Destroyed: v[cxDestroy], CloseNotify: v[cxCloseNotify],
			ConnectFail: v[cxConnectFail], DestroyActive: v[cxDestroyActive],
			Resets: v[rqReset], Ejected: v[rqEjected], Requests: v[rqTotal], Errors: v[rqErrors], Timeouts: v[rqTimeout],
			Retries: v[rqRetry], RetryOverflow: v[rqRetryOverflow], Overflow: v[rqPendingOverflow] + v[rqActiveOverflow],
			Members: v[members], Healthy: v[healthy],
		})
	}
	return t.out
}

// Garbage is a kind of what a source was told and could not use.
type Garbage uint8

// The kinds.
const (
	GarbageForm   Garbage = iota // not the form that it should have
	GarbageValue                 // no number, negative, or beyond 2^53
	GarbageNode                  // no node, or a name longer than 256 bytes
	GarbageDenied                // a node that may not speak
	GarbageTwin                  // of an Envoy whose counters another source brings
	GarbageMany                  // of more Envoys than MaxEnvoys
	numGarbage
)

// String is the name used in metrics.
func (g Garbage) String() string {
	names := [...]string{"form", "value", "node", "denied", "twin", "many"}
	if int(g) < len(names) {
		return names[g]
	}
	return "unknown"
}

// prefix is what the names of all cluster statistics begin with.
const prefix = "cluster."

// parts takes a statistic's name apart: the cluster, as far as it is in the
// name, and the statistic.
func parts(name []byte) (cluster []byte, s stat) {
	if len(name) < len(prefix) || string(name[:len(prefix)]) != prefix {
		return nil, numStats
	}
	name = name[len(prefix):]
	dot := lastDot(name)
	if dot < 0 {
		return nil, statOf(name)
	}
	return name[:dot], statOf(name[dot+1:])
}

func lastDot(b []byte) int {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] == '.' {
			return i
		}
	}
	return -1
}

// filter is the regular expression for the admin address that selects the
// statistics of these clusters; of all where they are too many to be named.
func filter(clusters []string, quote func(string) string) string {
	names := statNames()
	of := ".*"
	quoted := make([]string, len(clusters))
	for i, c := range clusters {
		quoted[i] = quote(c)
	}
	if list := strings.Join(quoted, "|"); list != "" && len(list) <= 1024 {
		of = "(" + list + ")"
	}
	return `^cluster\.` + of + `\.(` + strings.Join(names[:], "|") + ")$"
}
