package protect

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Keeper remembers what each cluster was told, and tells something else when
// it may (see the package comment). The zero value has told nothing. Not safe
// for concurrent use.
type Keeper struct {
	policy *policy.Policy
	plan   *plan
	kept   map[string]*kept
	inputs []*Input // by scope of the plan; used again in each Step
	log    []time.Time
	now    time.Time
}

// kept is one cluster.
type kept struct {
	told    Settings
	is      measure   // of told
	changed time.Time // when it was told; zero = never

	want measure
	why  []Reason
	past []span // what was wanted before and may still hold, oldest first

	due     time.Time // since when it waits to be told something else; zero = it does not
	loosens bool      // and that is looser in everything that differs
}

// span is something that was wanted until an instant.
type span struct {
	measure
	why   []Reason
	until time.Time
}

// patience is how long a loosening waits before it ranks as a tightening that
// just came.
const patience = time.Second

// maxPast bounds what is remembered of one cluster that changes its mind often;
// beyond it the two oldest count as one.
const maxPast = 16

// Step takes what all clusters look like at now and gives what each cluster of
// the policy is told, by name, what of it is new, and the instant at which to
// call again if nothing happens before; zero = not needed. A cluster without
// an input looks well; of two inputs for one cluster the last counts; inputs
// for clusters that the policy does not have are passed over. What it gives is
// not written to again.
func (k *Keeper) Step(now time.Time, inputs []Input, p *policy.Policy) (settings []Settings, changed []Change, next time.Time) {
	k.tick(now)
	if p != k.policy {
		changed = k.follow(now, p)
	}
	for i := range inputs {
		if at, ok := k.plan.byName[inputs[i].Cluster]; ok {
			k.inputs[at] = &inputs[i]
		}
	}
	var waiting []*kept
	for i := range k.plan.scopes {
		c := &k.plan.scopes[i]
		in := k.inputs[i]
		k.inputs[i] = nil
		if in == nil {
			in = &Input{Cluster: c.Name}
		}
		s := k.of(c.Name)
		s.hear(now, k.plan.desired(c, in), k.calm())
		if s.aim(now, k.calm()); !s.due.IsZero() {
			waiting = append(waiting, s)
		}
	}
	changed, next = k.tell(now, waiting, changed)
	settings = make([]Settings, len(k.plan.scopes))
	for i := range k.plan.scopes {
		s := k.of(k.plan.scopes[i].Name)
		settings[i] = s.told
		if len(s.past) > 0 {
			next = sooner(next, s.past[0].until.Add(k.calm()))
		}
	}
	return settings, changed, next
}

// calm is how long loosening waits; what the policy switches off does not.
func (k *Keeper) calm() time.Duration {
	if k.plan.protection.Off {
		return 0
	}
	return k.plan.protection.Calm
}

func (k *Keeper) of(cluster string) *kept {
	s := k.kept[cluster]
	if s == nil {
		if k.kept == nil {
			k.kept = make(map[string]*kept)
		}
		s = &kept{told: Settings{Cluster: cluster}}
		s.is = measureOf(&s.told)
		s.want = s.is
		k.kept[cluster] = s
	}
	return s
}

// tick sets the clock. One that steps back takes along what is remembered, as
// if no time had passed.
func (k *Keeper) tick(now time.Time) {
	if back := k.now.Sub(now); back > 0 {
		shift := func(t *time.Time) {
			if !t.IsZero() {
				*t = t.Add(-back)
			}
		}
		for i := range k.log {
			shift(&k.log[i])
		}
		for _, s := range k.kept {
			shift(&s.changed)
			shift(&s.due)
			for i := range s.past {
				shift(&s.past[i].until)
			}
		}
	}
	k.now = now
}

// follow takes another policy. A cluster that it does not have any more is
// forgotten: nothing is told of it, so it has the file's numbers.
func (k *Keeper) follow(now time.Time, p *policy.Policy) (changed []Change) {
	k.policy, k.plan = p, newPlan(p)
	k.inputs = make([]*Input, len(k.plan.scopes))
	for name, s := range k.kept {
		if _, ok := k.plan.byName[name]; ok {
			continue
		}
		file := Settings{}
		s.is.differences(measureOf(&file), name, func(key, from, to string) {
			changed = append(changed, Change{now, name, key, from, to, "the policy has no such cluster any more"})
		})
		delete(k.kept, name)
	}
	slices.SortStableFunc(changed, func(a, b Change) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return changed
}

// hear takes what is wanted now.
func (s *kept) hear(now time.Time, want Settings, calm time.Duration) {
	m := measureOf(&want)
	if !m.equal(s.want) {
		s.past = append(s.past, span{s.want, s.why, now})
		if len(s.past) > maxPast {
			s.past[1].measure = s.past[1].tightest(s.past[0].measure)
			s.past = slices.Delete(s.past, 0, 1)
		}
		s.want = m
	}
	s.why = want.Because
	over := func(p span) bool { return now.Sub(p.until) >= calm || !p.tighter(m) }
	s.past = slices.DeleteFunc(s.past, over)
}

// aim holds what is wanted, and what was within calm, against what is told.
func (s *kept) aim(now time.Time, calm time.Duration) {
	m, why := s.goal(calm)
	if m.equal(s.is) {
		s.due, s.told.Because = time.Time{}, why
		return
	}
	loosens := !m.tighter(s.is)
	if s.due.IsZero() || s.loosens && !loosens {
		s.due = now
	}
	s.loosens = loosens
}

// goal is what should be told, with its reasons. What was wanted before holds
// what is told, and tightens nothing any more.
func (s *kept) goal(calm time.Duration) (measure, []Reason) {
	if len(s.past) == 0 {
		return s.want, s.why
	}
	hold := s.past[0].measure
	for i := range s.past[1:] {
		hold = hold.tightest(s.past[i+1].measure)
	}
	m, why := s.want.tightest(hold.loosest(s.is)), s.why
	if !m.equal(s.want) {
		last := &s.past[len(s.past)-1]
		text := "kept until " + clock(last.until.Add(calm)) + ", until it was calm for " + calm.String()
		if len(last.why) > 0 {
			text += "; before: " + last.why[0].Text
		}
		why = append(slices.Clip(why), Reason{"B10", text})
	}
	return m, why
}

// rank orders those that wait.
func (s *kept) rank() time.Time {
	if s.loosens {
		return s.due.Add(patience)
	}
	return s.due
}

// tell changes as many of those that wait as may be, and gives the instant at
// which the next may.
func (k *Keeper) tell(now time.Time, waiting []*kept, changed []Change) ([]Change, time.Time) {
	var next time.Time
	protection := &k.plan.protection
	most := max(protection.MaxPerSec, 1)
	waiting = slices.DeleteFunc(waiting, func(s *kept) bool {
		ready := s.changed.Add(protection.Interval)
		if s.changed.IsZero() || !now.Before(ready) {
			return false
		}
		next = sooner(next, ready)
		return true
	})
	slices.SortFunc(waiting, func(a, b *kept) int {
		return cmp.Or(a.rank().Compare(b.rank()), a.changed.Compare(b.changed), cmp.Compare(a.told.Cluster, b.told.Cluster))
	})
	old := 0
	for old < len(k.log) && now.Sub(k.log[old]) >= time.Second {
		old++
	}
	k.log = slices.Delete(k.log, 0, old)
	free := max(most-len(k.log), 0)
	for i, s := range waiting {
		if i >= free {
			// A policy may have lowered the bound below what was told already.
			return changed, sooner(next, k.log[len(k.log)-most].Add(time.Second))
		}
		k.log = append(k.log, now)
		changed = s.change(now, k.calm(), changed)
	}
	return changed, next
}

// change tells the cluster its goal.
func (s *kept) change(now time.Time, calm time.Duration, changed []Change) []Change {
	m, why := s.goal(calm)
	text := fmt.Sprintf("calm for %v", calm)
	if len(why) > 0 {
		text = why[0].Text
	}
	cluster := s.told.Cluster
	s.is.differences(m, cluster, func(key, from, to string) {
		changed = append(changed, Change{now, cluster, key, from, to, text})
	})
	s.told = m.settings(cluster)
	s.told.Because = why
	s.is, s.changed, s.due = m, now, time.Time{}
	return changed
}

// sooner is the earlier of two instants, the zero one being never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
