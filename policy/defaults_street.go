package policy

import "time"

func defaultWatch() Watch {
	return Watch{
		Metrics: true,
		Every:   500 * time.Millisecond,
		GoAway:  GoAway{PerSecond: 5, Share: 0.5, Window: 10 * time.Second},
		Protect: Protect{Below: 0.5, Above: 0.8, Calm: 5 * time.Second},
	}
}

func defaultProtection() Protection {
	return Protection{
		Calm:      time.Second,
		Interval:  200 * time.Millisecond,
		MaxPerSec: 100,
		Floor:     0.1,
	}
}

func defaultEtcd() Etcd { return Etcd{Prefix: "/weir/"} }

func defaultXDS() XDS { return XDS{Layer: "weir"} }

// defaultCluster has the numbers that "weir envoy cluster" prints. They are
// those that Envoy has by default, but for MaxRequests, which follows from the
// pools (see ProtectedClusters), and for MinRetries: when a host leaves, all
// calls that wait for its connection are tried again together, and three at
// once are too few of them.
func defaultCluster() Cluster {
	return Cluster{MaxConnections: 1024, MaxPending: 1024, MaxRetries: 3, Budget: 0.2, MinRetries: 50}
}

func defaultEndpoints() Endpoints {
	return Endpoints{Return: 30 * time.Second, Heartbeat: 500 * time.Millisecond}
}

// complete says how often a source is read again.
func (e *Endpoints) complete() {
	if e == nil {
		return
	}
	for i := range e.Priorities {
		if s := &e.Priorities[i]; s.Every == 0 && s.Static == nil {
			s.Every = 5 * time.Second
		}
	}
}
