package policy

import (
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
		if !clusters[k].protocolSet {
			clusters[k].Protocol = pool.Protocol
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
	var seats int64
	pools := 0
	for i := range p.Pools {
		if pool := &p.Pools[i]; pool.Cluster == cluster {
			pools++
			seats += pool.mostSeats()
		}
	}
	if pools == 0 {
		return 1024
	}
	line := p.Queue.Length.Max
	for _, q := range p.profiles {
		line = max(line, q.Queue.Length.Max)
	}
	return min(seats+int64(line), maxThreshold)
}

// mostSeats is what a pool's seats may come to.
func (p *Pool) mostSeats() int64 {
	if p.Adaptive != nil {
		return p.Adaptive.Max
	}
	return p.Seats.Requests
}
