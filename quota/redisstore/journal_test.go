package redisstore

import (
	"testing"
	"testing/synctest"
	"time"
)

// What Redis may have heard of is not charged once it may have forgotten the
// id; what it never heard of is charged, however late.
func TestJournalChargesNothingTwice(t *testing.T) {
	const hold = 11 * time.Minute
	for _, tt := range []struct {
		name    string
		begin   func(j *journal)
		after   time.Duration
		reserve bool
	}{
		{"in doubt, remembered", func(j *journal) { j.grantedLocally("a", time.Time{}, nil, true) }, 10 * time.Minute, true},
		{"in doubt, forgotten", func(j *journal) { j.grantedLocally("a", time.Time{}, nil, true) }, 12 * time.Minute, false},
		{"never told", func(j *journal) { j.grantedLocally("a", time.Time{}, nil, false) }, time.Hour, true},
		{"told late, remembered", func(j *journal) { told(j, 20*time.Minute) }, time.Minute, true},
		{"told late, forgotten", func(j *journal) { told(j, 20*time.Minute) }, 3 * time.Minute, false},
		{"told again and again", func(j *journal) {
			for range 4 {
				told(j, time.Minute)
			}
		}, 9 * time.Minute, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJournal(10, hold)
				tt.begin(j)
				time.Sleep(tt.after)
				tasks := j.tasks(10)
				if len(tasks) != 1 {
					t.Fatalf("%d tasks, want 1", len(tasks))
				}
				if got := j.begin(tasks[0]).reserve; got != tt.reserve {
					t.Errorf("charged: %v, want %v", got, tt.reserve)
				}
			})
		})
	}
}

// told makes Redis hear of a request after a time; the answer is lost.
func told(j *journal, after time.Duration) {
	j.grantedLocally("a", time.Time{}, nil, false)
	time.Sleep(after)
	for _, t := range j.tasks(10) {
		j.begin(t)
	}
}
