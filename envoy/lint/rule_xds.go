package lint

import (
	"fmt"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

func (l *linter) emitsTags() (tags bool) {
	all(l.doc, func(c *metricsv3.MetricsServiceConfig) { tags = tags || c.GetEmitTagsAsLabels() })
	return tags
}

// checkNode: without both names Envoy refuses to start where it has an xDS
// source; without an id weir takes no counters. Both may be on the command line.
func checkNode(l *linter) {
	asks, counts := false, false
	all(l.doc, func(s *corev3.ConfigSource) { asks = asks || s.GetApiConfigSource() != nil || s.GetAds() != nil })
	all(l.doc, func(*metricsv3.MetricsServiceConfig) { counts = true })
	n := l.doc.root.GetNode()
	var missing []string
	if n.GetId() == "" && (asks || counts) {
		missing = append(missing, "node.id")
	}
	if n.GetCluster() == "" && asks {
		missing = append(missing, "node.cluster")
	}
	if len(missing) == 0 {
		return
	}
	follows := "weir takes no counters from an Envoy without a name"
	if asks {
		follows = "Envoy does not start with an xDS source and without them"
	}
	l.warn(l.doc.field(l.doc.root, "node"), "no "+strings.Join(missing, " and ")+": "+follows,
		"write node: {id: edge-1, cluster: llm-edge}, each Envoy with an id of its own, or start Envoy with --service-node and --service-cluster")
}

func checkRTDS(l *linter) {
	if l.Policy == nil || l.Policy.Envoy.XDS == nil {
		return
	}
	want := l.Policy.Envoy.XDS.Layer
	var names []string
	for _, layer := range l.doc.root.GetLayeredRuntime().GetLayers() {
		if r := layer.GetRtdsLayer(); r != nil {
			if r.GetName() == want {
				return
			}
			names = append(names, r.GetName())
		}
	}
	message := "no rtds_layer named " + want + ": what the policy pushes (envoy.xds.layer) is not asked for"
	if len(names) > 0 {
		message += "; there is " + strings.Join(names, ", ")
	}
	l.fail(l.doc.field(l.doc.root, "layered_runtime"), message, "add a layer {name: "+want+", rtds_layer: {name: "+want+", rtds_config: ...}}, see weir envoy snippet")
}

// checkEDS: endpoints and shedding by EDS reach only clusters of that type.
func checkEDS(l *linter) {
	if l.Policy == nil || l.Policy.Envoy.XDS == nil || l.Policy.Envoy.XDS.CDS {
		return
	}
	for i := range l.Policy.Envoy.Clusters {
		want := &l.Policy.Envoy.Clusters[i]
		c := l.scene.clusters[want.Name]
		if want.Endpoints == nil || c == nil || c.GetType() == clusterv3.Cluster_EDS {
			continue
		}
		l.fail(l.doc.field(c, "type"), "the policy serves the endpoints of cluster "+quote(want.Name)+" (envoy.clusters), and it does not ask for them",
			"set type: EDS with eds_cluster_config of weir's cluster, or take endpoints out of the policy")
	}
}

// checkFetchTimeout: with 0s an Envoy that starts before weir never listens.
func checkFetchTimeout(l *linter) {
	all(l.doc, func(s *corev3.ConfigSource) {
		if !l.scene.asks(s) {
			return // another control plane's
		}
		switch t := s.GetInitialFetchTimeout(); {
		case t == nil:
			l.warn(l.doc.of(s), "an Envoy that starts while weir is away waits 15 s for each source before it listens", "set initial_fetch_timeout: 1s")
		case t.AsDuration() == 0:
			l.fail(l.doc.field(s, "initial_fetch_timeout"), "initial_fetch_timeout 0s: an Envoy that starts while weir is away never listens", "set initial_fetch_timeout: 1s")
		case t.AsDuration() > 15*time.Second:
			l.warn(l.doc.field(s, "initial_fetch_timeout"), fmt.Sprintf("an Envoy that starts while weir is away waits %v before it listens", t.AsDuration()), "set initial_fetch_timeout: 1s")
		}
	})
}

func checkMergeWindow(l *linter) {
	if !l.before(40) {
		return
	}
	for _, c := range l.doc.root.GetStaticResources().GetClusters() {
		if c.GetType() != clusterv3.Cluster_EDS {
			continue
		}
		if w := c.GetCommonLbConfig().GetUpdateMergeWindow(); w == nil || w.AsDuration() > 0 {
			p := l.doc.of(c)
			if w != nil {
				p = l.doc.field(c.GetCommonLbConfig(), "update_merge_window")
			}
			l.warn(p, "before Envoy 1.40 changes of health, weight and shedding of cluster "+quote(c.GetName())+" wait up to a second", "set common_lb_config: {update_merge_window: 0s}")
		}
	}
}

// watched are the statistics of a model cluster that weir looks at.
var watched = []string{"upstream_cx_close_notify", "upstream_cx_active", "upstream_rq_retry", "upstream_rq_rx_reset", "upstream_rq_pending_failure_eject", "upstream_cx_destroy_remote_with_active_rq", "upstream_rq_5xx", "upstream_cx_connect_fail", "membership_healthy"}

func checkStats(l *linter) {
	sink := false
	all(l.doc, func(c *metricsv3.MetricsServiceConfig) {
		sink = true
		if c.GetReportCountersAsDeltas().GetValue() {
			l.fail(l.doc.field(c, "report_counters_as_deltas"), "what is counted while weir is away is lost", "remove report_counters_as_deltas: weir subtracts by itself")
		}
	})
	root := l.doc.root
	if sink {
		t := root.GetStatsFlushInterval()
		if d := t.AsDuration(); t == nil && !root.GetStatsFlushOnAdmin() || d > time.Second {
			l.warn(l.doc.field(root, map[bool]string{true: "stats_sinks", false: "stats_flush_interval"}[t == nil]), "statistics reach weir every 5 s or later: a GOAWAY storm is over by then", "set stats_flush_interval: 1s")
		}
	}
	m := root.GetStatsConfig().GetStatsMatcher()
	if m == nil || !sink && (l.Policy == nil || len(l.Policy.Envoy.Watch.Admin) == 0) {
		return
	}
	for _, c := range root.GetStaticResources().GetClusters() {
		if !l.scene.models[c.GetName()] {
			continue
		}
		for _, stat := range watched {
			if name := "cluster." + c.GetName() + "." + stat; !kept(m, name) {
				l.fail(l.doc.field(root.GetStatsConfig(), "stats_matcher"), "statistics are dropped that weir watches: "+name, "keep cluster.<model>.* in stats_matcher")
				return
			}
		}
	}
}

// kept is whether a matcher keeps a statistic.
func kept(m *metricsv3.StatsMatcher, name string) bool {
	listed := func(l *matcherv3.ListStringMatcher) bool {
		for _, p := range l.GetPatterns() {
			if matches(p, name) {
				return true
			}
		}
		return false
	}
	switch o := m.GetStatsMatcher().(type) {
	case *metricsv3.StatsMatcher_RejectAll:
		return !o.RejectAll
	case *metricsv3.StatsMatcher_ExclusionList:
		return !listed(o.ExclusionList)
	case *metricsv3.StatsMatcher_InclusionList:
		return listed(o.InclusionList)
	}
	return true
}

// checkAdmin: what weir polls has to be let through.
func checkAdmin(l *linter) {
	all(l.doc, func(a *bootstrapv3.Admin) {
		if len(a.GetAllowPaths()) == 0 {
			return
		}
		for _, path := range []string{"/stats", "/ready"} {
			ok := false
			for _, m := range a.GetAllowPaths() {
				ok = ok || matches(m, path)
			}
			if !ok {
				l.warn(l.doc.field(a, "allow_paths"), "the admin interface answers 403 on "+path+", which weir and readiness checks ask", "add {prefix: "+path+"}")
			}
		}
	})
}
