package gpu

// clockReason is one bit of a mask of clock event reasons: why a GPU does not
// run as fast as it could.
type clockReason struct {
	bit  uint64
	name string
	slow string // what it does where the hardware itself slows down; "" = idleness, a setting, a software limit
}

// clockReasons are the bits that NVML and DCGM name alike (nvml.h,
// nvmlClocksEventReason*; dcgm_fields.h, DCGM_CLOCKS_EVENT_REASON_*, field
// 112). Of those that slow down the first says why: the general bit is set
// beside the particular ones.
func clockReasons() []clockReason {
	return []clockReason{
		{0x40, "hw_thermal", "slowed down: too hot"},
		{0x80, "hw_power_brake", "slowed down: power brake"},
		{0x8, "hw_slowdown", "slowed down by the hardware"},
		{0x1, "idle", ""},
		{0x2, "settings", ""},
		{0x4, "sw_power_cap", ""},
		{0x10, "sync_boost", ""},
		{0x20, "sw_thermal", ""},
		{0x100, "display", ""},
	}
}

// ClockReasons names the reasons of a card's mask, in a fixed order: one or
// more of hw_thermal, hw_power_brake, hw_slowdown, idle, settings,
// sw_power_cap, sync_boost, sw_thermal, display and other (bits without a
// name); none alone where no bit is set; nil where the mask is not known.
func ClockReasons(mask Value) []string {
	if !mask.OK {
		return nil
	}
	bits := uint64(mask.V)
	if bits == 0 {
		return []string{"none"}
	}
	var names []string
	for _, r := range clockReasons() {
		if bits&r.bit != 0 {
			names = append(names, r.name)
		}
		bits &^= r.bit
	}
	if bits != 0 {
		names = append(names, "other")
	}
	return names
}

// slowed is why the hardware slows a card down; "" = it does not.
func slowed(c *Card) string {
	if !c.Clocks.OK {
		return ""
	}
	for _, r := range clockReasons() {
		if r.slow != "" && uint64(c.Clocks.V)&r.bit != 0 {
			return r.slow
		}
	}
	return ""
}
