package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The collector's target where GOGC does not say. weir keeps little and
// allocates for each message, so that Go's default of 100 percent spends a
// seventh of a decision on collecting a heap of a few megabytes; with a large
// heap, or many requests that wait, the same percentage would be most of the
// memory in use. So the heap may grow by garbageRoom, within these bounds.
const (
	gcPercentMost  = 400
	gcPercentLeast = 25
	garbageRoom    = 16 << 20
	memoryLook     = time.Second
	memoryLooks    = 5        // until memory may be given back
	memorySpare    = 32 << 20 // kept from the system without being in use
	memoryQuiet    = 3        // groups of looks without a collection, after which what is live is found out
)

// gcPercent is the target for a heap of live bytes and stacks of so many.
func gcPercent(live, stacks uint64) int {
	percent := garbageRoom * 100 / max(live+stacks, 1)
	return int(min(max(percent, gcPercentLeast), gcPercentMost)) //nolint:gosec // bounded
}

// memoryUse is what the process has from the system.
type memoryUse struct {
	live    uint64 // objects that the last collection found
	objects uint64 // live, and garbage since
	stacks  uint64
	idle    uint64 // of the heap, neither in use nor given back
	cycles  uint64 // collections
}

func readMemory(s []metrics.Sample) memoryUse {
	metrics.Read(s)
	return memoryUse{s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64(), s[3].Value.Uint64() + s[4].Value.Uint64(), s[5].Value.Uint64()}
}

func memorySamples() []metrics.Sample {
	return []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
}

// releases reports that memory is to be given back: far more is held than is
// in use, and it is no longer asked for. Without it, what a flood of large
// bodies took stays until the next collection, two minutes later where nothing
// is allocated.
func releases(before, now memoryUse) bool {
	excess := now.idle + now.objects - min(now.live, now.objects)
	return excess > memorySpare+now.live && now.objects+now.idle <= before.objects+before.idle+memorySpare/4
}

// forgotten reports that much is held and that nobody has looked for long what
// of it is in use: the bodies of a flood are found out to be garbage only by a
// collection, and where little is allocated none comes for two minutes.
func forgotten(quiet int, now memoryUse) bool {
	return quiet >= memoryQuiet && now.objects > 2*memorySpare
}

// keepMemory sets the collector's target by what is in use, unless the operator
// has chosen one, and gives back what a flood took. It ends with stop.
func keepMemory(stop <-chan struct{}) {
	chosen := os.Getenv("GOGC") != ""
	if !chosen {
		debug.SetGCPercent(gcPercentMost)
	}
	samples := memorySamples()
	before, percent, quiet := readMemory(samples), gcPercentMost, 0
	tick := time.NewTicker(memoryLook)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := readMemory(samples)
		if next := gcPercent(now.live, now.stacks); !chosen && next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
		if n%memoryLooks != 0 {
			continue
		}
		if quiet++; now.cycles != before.cycles {
			quiet = 0
		}
		if releases(before, now) || forgotten(quiet, now) {
			debug.FreeOSMemory()
		}
		before = now
	}
}
