package admission

import "github.com/weirproxy/weir/queue"

// enterLane lets a request with priority past a breaker that refuses it (P8),
// while fewer than the lane's guaranteed seats are held, or waited for, past
// the breaker. It then runs by the lane's reason, and how it ends decides
// nothing about the breaker (B1). False: it has no priority, or the lane is
// full.
func (l *pool) enterLane(p *Plan) bool {
	if !p.Request.Priority {
		return false
	}
	held, most := l.laned.Add(1), l.lane.Load()
	p.step(RoomBreaker, "lane", float64(held), float64(most), held <= most)
	if held > most {
		l.laned.Add(-1)
		return false
	}
	p.lane = l
	p.Decision.Reason = AdmittedLane
	return true
}

// leaveLane gives the lane's seat back, once.
func (p *Plan) leaveLane() {
	if p.lane != nil {
		p.lane.laned.Add(-1)
		p.lane = nil
	}
}

// laneSeats is the lane's guarantee: its share of the seats below the
// headroom, rounded down, at least one; 0 where there is no lane.
func laneSeats(c *queue.Config) int64 {
	if c.Shares.Priority <= 0 {
		return 0
	}
	usable := float64(c.Seats.Requests) * (1 - float64(c.Shares.Headroom))
	return max(int64(usable*float64(c.Shares.Priority)), 1)
}
