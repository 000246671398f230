package dcgm

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/weirproxy/weir/gpu"
)

func integer(v int64) raw {
	return raw{kind: typeInt, value: binary.NativeEndian.AppendUint64(nil, uint64(v))}
}

func double(v float64) raw {
	return raw{kind: typeDouble, value: binary.NativeEndian.AppendUint64(nil, math.Float64bits(v))}
}

func status(s int) raw { v := integer(50); v.status = s; return v }

func row(t *testing.T, id uint16) *field {
	t.Helper()
	list := fields()
	i := slices.IndexFunc(list, func(f field) bool { return f.id == id })
	if i < 0 {
		t.Fatalf("field %d is not in the table", id)
	}
	return &list[i]
}

// TestRead: values come in the card's unit; blanks and sentinels of every
// type, in whatever type they were widened to, and impossible numbers are
// missing, each by its name (gpu-monitoring-tools#92, slurm-job-exporter#30,
// go-dcgm#75).
func TestRead(t *testing.T) {
	for _, c := range []struct {
		name string
		id   uint16
		in   raw
		want float64
		why  missing
	}{
		{"percent", 203, integer(99), 0.99, present},
		{"percent as a double", 203, double(99), 0.99, present},
		{"idle is a number", 203, integer(0), 0, present},
		{"memory", 252, integer(20480), 20480 << 20, present},
		{"watts", 155, double(310.5), 310.5, present},
		{"ratio", 1002, double(0.25), 0.25, present},
		{"ratio of two counters", 1001, double(1.004), 1, present},
		{"PCIe by profiling", 1009, integer(1e9), 1e9, present},
		{"PCIe by the old field", 200, integer(3e6), 3e9, present},
		{"XID", 230, integer(79), 79, present},
		{"clock reasons", 112, integer(0x48), 0x48, present},

		{"int64 blank", 203, integer(0x7ffffffffffffff0), 0, blank},
		{"int64 not found", 250, integer(0x7ffffffffffffff1), 0, notFound},
		{"int64 not supported", 203, integer(9223372036854775794), 0, notSupported},
		{"int64 not permitted", 203, integer(0x7ffffffffffffff3), 0, notPermitted},
		{"int64 top", 203, integer(math.MaxInt64), 0, blank},
		{"int32 blank in an int64", 230, integer(0x7ffffff0), 0, blank},
		{"int32 not supported in an int64", 150, integer(0x7ffffff2), 0, notSupported},
		{"double blank", 1002, double(140737488355328), 0, blank},
		{"double not found", 1002, double(140737488355329), 0, notFound},
		{"double not supported", 1002, double(140737488355330), 0, notSupported},
		{"double not permitted", 1002, double(140737488355331), 0, notPermitted},
		{"int64 blank in a double", 155, double(9223372036854775794), 0, blank},
		{"int32 not supported in a double", 155, double(0x7ffffff2), 0, notSupported},

		{"int32 -1 without a sign", 203, integer(4294967295), 0, outOfBounds},
		{"thousands of per cent", 203, integer(4200), 0, outOfBounds},
		{"101 %", 203, integer(101), 0, outOfBounds},
		{"negative", 252, integer(-1), 0, outOfBounds},
		{"NaN", 1004, double(math.NaN()), 0, outOfBounds},
		{"Inf", 155, double(math.Inf(1)), 0, blank},
		{"-Inf", 155, double(math.Inf(-1)), 0, outOfBounds},
		{"ratio of 2", 1005, double(2), 0, outOfBounds},
		{"text", 203, raw{kind: typeText, value: []byte("50\x00......")}, 0, notANumber},
		{"no type", 203, raw{value: make([]byte, 8)}, 0, notANumber},
		{"short", 203, raw{kind: typeInt, value: []byte{1}}, 0, notANumber},

		{"not watched", 203, status(-16), 0, noData},
		{"no data", 203, status(-14), 0, noData},
		{"module not loaded", 1001, status(-33), 0, noData},
		{"not supported", 203, status(-6), 0, notSupported},
		{"no permission", 1001, status(-17), 0, notPermitted},
		{"GPU lost", 203, status(-18), 0, lost},
		{"detached", 203, status(-67), 0, lost},
		{"another error", 203, status(-3), 0, blank},
	} {
		got, why := row(t, c.id).read(c.in)
		if math.Abs(got-c.want) > 1e-9*math.Abs(c.want) || why != c.why {
			t.Errorf("%s: %v, %s; want %v, %s", c.name, got, why, c.want, c.why)
		}
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{"GPU-1\x00\x00x": "GPU-1", "<<<NULL>>>\x00": "", "<<<NOT_SUPPORTED>>>": "", "": ""} {
		if got := text(raw{kind: typeText, value: []byte(in)}); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

// TestTable: each row has a name, a target and bounds, no number stands twice,
// and what MIG instances do not have is not asked of them.
func TestTable(t *testing.T) {
	seen := map[uint16]bool{}
	for _, f := range fields() {
		if seen[f.id] || f.name == "" || f.to(&gpu.Card{}) == nil || !(f.scale > 0) || !(f.max > 0) {
			t.Errorf("row %+v", f)
		}
		seen[f.id] = true
	}
	var ids []uint16
	for _, f := range instanceFields() {
		ids = append(ids, f.id)
	}
	if want := []uint16{252, 250, 1001, 1002, 1003, 1004, 1005}; !slices.Equal(ids, want) {
		t.Errorf("of an instance: %d, want %d", ids, want)
	}
}

// FuzzRead: whatever the library says, a present value is within its bounds.
func FuzzRead(f *testing.F) {
	f.Add(uint(typeInt), 0, uint64(50), 0)
	f.Add(uint(typeDouble), 0, math.Float64bits(140737488355330), 3)
	f.Fuzz(func(t *testing.T, kind uint, status int, bits uint64, n int) {
		list := fields()
		r := &list[int(uint(n)%uint(len(list)))]
		v, why := r.read(raw{status: status, kind: kind, value: binary.NativeEndian.AppendUint64(nil, bits)})
		if why == present && !(v >= 0 && v <= r.max*r.scale) || why != present && v != 0 {
			t.Errorf("field %d, type %d, bits %#x: %v, %s", r.id, kind, bits, v, why)
		}
		_ = why.String()
	})
}

func TestConnection(t *testing.T) {
	for in, want := range map[string][]string{
		"localhost:5555":        {"localhost:5555", "0"},
		"10.0.0.7":              {"10.0.0.7", "0"},
		"[::1]:5555":            {"[::1]:5555", "0"},
		"tcp://gpu-node:5555":   {"gpu-node:5555", "0"},
		"/run/dcgm.sock":        {"/run/dcgm.sock", "1"},
		"unix:/run/dcgm.sock":   {"/run/dcgm.sock", "1"},
		"unix:///run/dcgm.sock": {"/run/dcgm.sock", "1"},
		"vsock://2:5555":        {"vsock://2:5555"},
	} {
		if got := connection(in); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
