package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// checkSeats: each weir must have a seat of each pool, and some left below the
// headroom.
func (d *decoder) checkSeats(p *Policy) {
	n := int64(p.Server.Replicas)
	for i := range p.Pools {
		pool := &p.Pools[i]
		key := "seats.requests"
		if pool.Adaptive != nil {
			key = "seats.adaptive.min"
		}
		if pool.Seats.Requests < n {
			d.failAt(index2("pools", i, key), strconv.FormatInt(pool.Seats.Requests, 10),
				fmt.Sprintf("must be at least server.replicas, %d, which share the seats", n))
		} else if p.usable(pool) < 1 {
			d.failAt("queue.headroom", formatRatio(p.Queue.Headroom),
				fmt.Sprintf("leaves no seat of pools[%d], %s: each weir has %d", i, pool.Name, pool.Seats.Requests/n))
		}
	}
}

// usable is how many seats of a pool are left to one weir below the headroom,
// at worst.
func (p *Policy) usable(pool *Pool) int64 {
	seats := pool.Seats.Requests / int64(p.Server.Replicas)
	return seats - int64(math.Ceil(float64(seats)*float64(p.Queue.Headroom)-1e-9))
}

// checkTierShares: guarantees that add up to more than there is are none (P9).
func (d *decoder) checkTierShares(p *Policy) {
	var sum Ratio
	var parts []string
	for _, t := range p.Tiers {
		sum += t.Share
		parts = append(parts, t.Name+" "+formatRatio(t.Share))
	}
	if sum > 1+1e-9 {
		d.failAt("tiers", fmt.Sprintf("%.4g%%", 100*sum), "shares must not add up to more than 100%: "+strings.Join(parts, ", "))
	}
}
