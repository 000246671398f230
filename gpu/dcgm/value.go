package dcgm

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
)

// missing says why there is no value; present = there is one.
type missing uint8

const (
	present       missing = iota
	blank                 // DCGM's blank, or an error that it has no word for
	notFound              // DCGM's blank + 1
	notSupported          // + 2: the board or driver does not know it
	notPermitted          // + 3: not with these rights
	noData                // nothing sampled yet, not watched, or its module is not loaded
	lost                  // the GPU is off the bus, detached or needs a reset
	outOfBounds           // a number that the field cannot have (go-dcgm#75)
	notANumber            // another type than expected
	frozen                // its time stamp does not move any more
	unwatched             // the watch was refused
	countOfReason         // of the constants above
)

func (m missing) String() string {
	return [countOfReason]string{"present", "blank", "not found", "not supported", "not permitted", "no data", "GPU lost",
		"out of bounds", "not a number", "frozen", "watch refused"}[m]
}

// passing reports whether watching anew may help.
func (m missing) passing() bool {
	return m == blank || m == notFound || m == noData || m == frozen || m == unwatched
}

// The types of a value, as it says itself.
const (
	typeDouble = 'd'
	typeInt    = 'i'
	typeTime   = 't'
	typeText   = 's'
)

// The first of each row of sentinels (dcgm_structs.h). A row has 16.
const (
	blankInt32  = 0x7ffffff0
	blankInt64  = 0x7ffffffffffffff0
	blankDouble = 1 << 47
	blanks      = 16
)

// raw is a value as DCGM gives it.
type raw struct {
	status int   // a dcgmReturn_t
	kind   uint  // one of the types
	stamp  int64 // µs, by the clock of the host engine
	value  []byte
}

// read is a value in the card's unit, or why there is none.
func (f *field) read(v raw) (float64, missing) {
	if m := ofStatus(v.status); m != present {
		return 0, m
	}
	if len(v.value) < 8 {
		return 0, notANumber
	}
	bits := binary.NativeEndian.Uint64(v.value)
	var x float64
	switch v.kind {
	case typeInt, typeTime:
		if int64(bits) >= blankInt64 {
			return 0, ofSentinel(float64(int64(bits) - blankInt64))
		}
		x = float64(int64(bits))
	case typeDouble:
		x = math.Float64frombits(bits)
	default:
		return 0, notANumber
	}
	switch {
	case x >= blankInt32 && x < blankInt32+blanks:
		return 0, ofSentinel(x - blankInt32)
	case x >= blankDouble && x < blankDouble+blanks:
		return 0, ofSentinel(x - blankDouble)
	case x >= blankInt64: // an int64's, rounded
		return 0, blank
	case !(x >= 0 && x <= f.max*(1+f.slack)): // also NaN
		return 0, outOfBounds
	}
	return min(x, f.max) * f.scale, present
}

// text is a string value, "" if it is blank.
func text(v raw) string {
	if ofStatus(v.status) != present || v.kind != typeText {
		return ""
	}
	s, _, _ := bytes.Cut(v.value, []byte{0})
	if strings.HasPrefix(string(s), "<<<") {
		return ""
	}
	return string(s)
}

func ofSentinel(n float64) missing {
	switch n {
	case 1:
		return notFound
	case 2:
		return notSupported
	case 3:
		return notPermitted
	}
	return blank
}

// ofStatus is the meaning of a dcgmReturn_t (dcgm_structs.h).
func ofStatus(status int) missing {
	switch status {
	case 0:
		return present
	case -6, -13, -22, -32, -36, -44: // not supported, unknown field, by GPU, by API, profiling, old driver
		return notSupported
	case -17, -29: // no permission, needs root
		return notPermitted
	case -14, -15, -16, -33: // no data, stale, not watched, module not loaded
		return noData
	case -18, -19, -67: // GPU lost, reset required, detached
		return lost
	}
	return blank
}
