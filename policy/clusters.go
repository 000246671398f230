package policy

import (
	"maps"
	"slices"
	"strings"
)

// ClusterOf is one of ProtectedClusters by its name in Envoy.
func (p *Policy) ClusterOf(name string) (Cluster, bool) {
	clusters := p.protected()
	i, ok := slices.BinarySearchFunc(clusters, name, func(c Cluster, name string) int { return strings.Compare(c.Name, name) })
	if !ok {
		return Cluster{}, false
	}
	return clusters[i], true
}

// ProtectedClusters are the clusters of the pools and those that
// envoy.clusters lists beside them, each once, by name, with every default
// filled in: MaxRequests is the seats of its pools (the most that adaptive
// ones come to) and the longest line of any profile, Protocol that of its
// pools. The slice is the caller's; what Endpoints point to is the policy's.
func (p *Policy) ProtectedClusters() []Cluster { return slices.Clone(p.protected()) }

// protected gives the table, which a policy put together by hand makes anew.
func (p *Policy) protected() []Cluster {
	if p.index != nil {
		return p.index.clusters
	}
	return p.protectedClusters()
}

// protectedClusters makes the table.
func (p *Policy) protectedClusters() []Cluster {
	clusters := slices.Clone(p.Envoy.Clusters)
	byName := make(map[string]int, len(clusters))
	for i := range clusters {
		byName[clusters[i].Name] = i
	}
	for i := range p.Pools {
		pool := &p.Pools[i]
		k, known := byName[pool.Cluster]
		if !known {
			k = len(clusters)
			byName[pool.Cluster] = k
			c := defaultCluster()
			c.Name = pool.Cluster
			clusters = append(clusters, c)
		}
		c := &clusters[k]
		if !c.protocolSet {
			c.Protocol = pool.Protocol
		}
		if len(pool.Subset) > 0 && !slices.ContainsFunc(c.Subsets, func(m map[string]string) bool { return maps.Equal(m, pool.Subset) }) {
			c.Subsets = append(c.Subsets, pool.Subset)
		}
	}
	for i := range clusters {
		if c := &clusters[i]; c.MaxRequests == 0 {
			c.MaxRequests = max(p.mostRequests(c.Name), 1)
		}
	}
	slices.SortStableFunc(clusters, func(a, b Cluster) int { return strings.Compare(a.Name, b.Name) })
	return clusters
}

// mostRequests is what weir may have under way and waiting for a cluster. For
// one that no pool has it is Envoy's default.
func (p *Policy) mostRequests(cluster string) int64 {
	seats, line, pools := p.load(cluster)
	if pools == 0 {
		return 1024
	}
	return min(seats+line, maxThreshold)
}

// load is what the pools of a cluster may come to: their seats (the most of
// adaptive ones), and the longest line of any profile.
func (p *Policy) load(cluster string) (seats, line int64, pools int) {
	for i := range p.Pools {
		pool := &p.Pools[i]
		if pool.Cluster != cluster {
			continue
		}
		pools++
		if pool.Adaptive != nil {
			seats += pool.Adaptive.Max
		} else {
			seats += pool.Seats.Requests
		}
	}
	longest := p.Queue.Length.Max
	for _, q := range p.profiles {
		longest = max(longest, q.Queue.Length.Max)
	}
	return seats, int64(longest), pools
}
