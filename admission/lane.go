package admission

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
