package gpu_test

import (
	"slices"
	"testing"

	"github.com/weirproxy/weir/gpu"
)

// Each bit by nvml.h's number has its name, alone and beside others.
func TestClockReasons(t *testing.T) {
	some := gpu.Some
	for _, tt := range []struct {
		mask gpu.Value
		want []string
	}{
		{gpu.Value{}, nil},
		{some(0), []string{"none"}},
		{some(1), []string{"idle"}},
		{some(2), []string{"settings"}},
		{some(4), []string{"sw_power_cap"}},
		{some(8), []string{"hw_slowdown"}},
		{some(16), []string{"sync_boost"}},
		{some(32), []string{"sw_thermal"}},
		{some(64), []string{"hw_thermal"}},
		{some(128), []string{"hw_power_brake"}},
		{some(256), []string{"display"}},
		{some(512), []string{"other"}},
		{some(72), []string{"hw_thermal", "hw_slowdown"}},
		{some(1<<40 + 1<<10 + 4), []string{"sw_power_cap", "other"}},
		{some(511), []string{"hw_thermal", "hw_power_brake", "hw_slowdown", "idle", "settings", "sw_power_cap", "sync_boost", "sw_thermal", "display"}},
	} {
		if got := gpu.ClockReasons(tt.mask); !slices.Equal(got, tt.want) {
			t.Errorf("mask %v: %q, want %q", tt.mask, got, tt.want)
		}
	}
}
