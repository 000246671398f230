package lint

import (
	"encoding/base64"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Envoy reads text by protobuf's JSON for C++, whose idea of a number, an enum
// or a boolean in a string is not that of protobuf for Go; this is C++'s, held
// by a test against `envoy --mode validate`.

// read fills a message that is written as one value; ok is false where Envoy
// takes no such value. since is the release that began to take it; 0 = all do.
func (s scalar) read(m proto.Message) (since Release, ok bool) {
	if d, is := m.(*durationpb.Duration); is {
		v, ok := readDuration(s.text)
		if ok {
			proto.Merge(d, v)
		}
		return 0, ok && s.kind == text
	}
	value := m.ProtoReflect().Descriptor().Fields().ByName("value")
	if value == nil { // a timestamp, a field mask
		return 0, s.kind == text && protojson.Unmarshal([]byte(quoteJSON(s.text)), m) == nil
	}
	v, since, ok := s.plain(value)
	if ok {
		m.ProtoReflect().Set(value, v)
	}
	return since, ok
}

// plain is the value for a field that is no message.
func (s scalar) plain(fd protoreflect.FieldDescriptor) (v protoreflect.Value, since Release, ok bool) {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		b, known := boolWords[strings.ToLower(s.text)]
		return protoreflect.ValueOfBool(b), 0, known && s.kind != integer
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.ToValidUTF8(s.text, "\uFFFD")), 0, s.kind == text
	case protoreflect.BytesKind:
		b, ok := readBytes(s.text)
		return protoreflect.ValueOfBytes(b), 0, ok && s.kind == text
	case protoreflect.EnumKind:
		n, ok := s.enum(fd.Enum())
		return protoreflect.ValueOfEnum(n), 0, ok
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		f, ok := s.float()
		if fd.Kind() == protoreflect.FloatKind {
			return protoreflect.ValueOfFloat32(float32(f)), 0, ok && (math.IsInf(f, 0) || math.IsNaN(f) || math.Abs(f) <= math.MaxFloat32)
		}
		return protoreflect.ValueOfFloat64(f), 0, ok
	default:
		n, since, ok := s.integer()
		if !ok {
			return v, since, false
		}
		v, ok = fit(n, fd.Kind())
		return v, since, ok
	}
}

// fit puts an integer into its kind; false is out of bounds.
func fit(n *big.Int, k protoreflect.Kind) (protoreflect.Value, bool) {
	switch k {
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n.Uint64())), n.IsUint64() && n.Uint64() <= math.MaxUint32 //nolint:gosec // bounded beside
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(n.Uint64()), n.IsUint64()
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n.Int64())), n.IsInt64() && n.Int64() >= math.MinInt32 && n.Int64() <= math.MaxInt32 //nolint:gosec // bounded beside
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(n.Int64()), n.IsInt64()
	}
	return protoreflect.Value{}, false
}

// readBytes takes base64 of both alphabets, with padding and without.
func readBytes(s string) ([]byte, bool) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	s = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(s), "=")
	b, err := base64.RawStdEncoding.DecodeString(s)
	return b, err == nil
}

// durationText is a duration in JSON: protobuf for C++ wants a digit on both
// sides of the point.
var durationText = regexp.MustCompile(`^(-?)([0-9]+)(?:\.([0-9]{1,9}))?s$`)

// maxSeconds is protobuf's bound on a duration.
const maxSeconds = 315_576_000_000

func readDuration(s string) (*durationpb.Duration, bool) {
	m := durationText.FindStringSubmatch(s)
	if m == nil {
		return nil, false
	}
	seconds, err := strconv.ParseInt(m[2], 10, 64)
	if err != nil || seconds > maxSeconds {
		return nil, false
	}
	nanos, _ := strconv.ParseInt((m[3] + "000000000")[:9], 10, 32) // nine digits
	if m[1] != "" {
		seconds, nanos = -seconds, -nanos
	}
	return &durationpb.Duration{Seconds: seconds, Nanos: int32(nanos)}, true //nolint:gosec // nine digits
}

// boolWords are absl::SimpleAtob's.
var boolWords = map[string]bool{"true": true, "t": true, "yes": true, "y": true, "1": true, "false": false, "f": false, "no": false, "n": false, "0": false}

// enum takes names in any case, and numbers also as text.
func (s scalar) enum(e protoreflect.EnumDescriptor) (protoreflect.EnumNumber, bool) {
	if s.kind == boolean {
		return 0, false
	}
	for i := range e.Values().Len() {
		if v := e.Values().Get(i); strings.EqualFold(string(v.Name()), s.text) {
			return v.Number(), true
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(s.text), 10, 32)
	return protoreflect.EnumNumber(n), err == nil //nolint:gosec // 32 bits
}

func (s scalar) float() (float64, bool) {
	switch {
	case s.kind == boolean:
		return 0, false
	case s.text == "NaN":
		return math.NaN(), true
	case s.text == "Infinity":
		return math.Inf(1), true
	case s.text == "-Infinity":
		return math.Inf(-1), true
	}
	return number(strings.TrimSpace(s.text))
}

// integer takes text too; what is no plain decimal (1e3, 10.0, 0x10) only from
// 1.37 on.
func (s scalar) integer() (*big.Int, Release, bool) {
	if s.kind == boolean || len(s.text) > 64 {
		return nil, 0, false
	}
	if n, ok := new(big.Int).SetString(s.text, 10); ok && !strings.HasPrefix(s.text, "-0") && !strings.Contains(s.text, "_") {
		return n, 0, true
	}
	f, ok := number(s.text)
	if !ok || f != math.Trunc(f) || math.IsInf(f, 0) {
		return nil, 0, false
	}
	n, _ := big.NewFloat(f).Int(nil)
	return n, 37, true
}

// number reads a number as absl::SimpleAtod does, but for the words.
func number(s string) (float64, bool) {
	digits := strings.TrimLeft(s, "+-")
	if digits == "" || len(s)-len(digits) > 1 || strings.ContainsAny(s, "_nNiI") {
		return 0, false
	}
	if strings.HasPrefix(digits, "0x") || strings.HasPrefix(digits, "0X") {
		n, err := strconv.ParseUint(digits[2:], 16, 64)
		f := float64(n)
		if s[0] == '-' {
			f = -f
		}
		return f, err == nil
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil
}

// checkNumbers finds what Envoy reads and refuses at its use: durations below
// zero or beyond 292 years, a percentage that is no number.
func checkNumbers(l *linter) {
	const longest = time.Duration(math.MaxInt64)
	for _, m := range l.doc.messages {
		m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if fd.IsList() || fd.IsMap() {
				return true
			}
			name := string(fd.Name())
			if fd.Kind() == protoreflect.DoubleKind && m.ProtoReflect().Descriptor().FullName() == "envoy.type.v3.Percent" && math.IsNaN(v.Float()) && !budget(l.doc.places[m].parent) {
				l.add(Error, "invalid", l.doc.field(m, name), name+": is no number", "Envoy refuses to start: write a number from 0 to 100")
			}
			if fd.Kind() != protoreflect.MessageKind {
				return true
			}
			if d, ok := v.Message().Interface().(*durationpb.Duration); ok && (d.Seconds < 0 || d.Nanos < 0 || d.Seconds >= int64(longest/time.Second)) {
				l.add(Error, "invalid", l.doc.field(m, name), fmt.Sprintf("%s: a duration of %d s", name, d.Seconds), "Envoy refuses to start: write 0s or more, at most 292 years")
			}
			return true
		})
	}
}

// budget is whether a percentage is a retry budget's, the one that Envoy does
// not look at.
func budget(parent proto.Message) bool {
	_, ok := parent.(*clusterv3.CircuitBreakers_Thresholds_RetryBudget)
	return ok
}
