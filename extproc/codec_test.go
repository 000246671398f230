package extproc

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func unmarshal(t testing.TB, b []byte) *extprocv3.ProcessingResponse {
	t.Helper()
	out := &extprocv3.ProcessingResponse{}
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatalf("written %x: %v", b, err)
	}
	return out
}

// readAlike holds decode against protobuf where that can read the bytes. A
// part that comes twice may be refused.
func readAlike(t testing.TB, data []byte) {
	t.Helper()
	var in extprocv3.ProcessingRequest
	if proto.Unmarshal(data, &in) != nil {
		return
	}
	want, wantErr := readByProtobuf(&in)
	got, err := decode(data)
	switch {
	case errors.Is(err, errRepeated):
		return
	case (err == nil) != (wantErr == nil):
		t.Fatalf("%x: %v, protobuf: %v", data, err, wantErr)
	case err != nil:
		return
	}
	if got.phase != want.phase || got.endOfStream != want.endOfStream || got.observe != want.observe ||
		!bytes.Equal(got.body, want.body) || !slices.Equal(got.header, want.header) || !reflect.DeepEqual(got.modes, want.modes) {
		t.Fatalf("%x:\n%+v, protobuf:\n%+v", data, got, want)
	}
	if g, w := maps.Collect(got.attributes), maps.Collect(want.attributes); !maps.Equal(g, w) {
		t.Fatalf("%x: attributes %v, protobuf %v", data, g, w)
	}
	for ns := range in.GetMetadataContext().GetFilterMetadata() {
		g, gotIt := got.metadata(ns)
		w, wanted := want.metadata(ns)
		if gotIt != wanted || fmt.Sprint(g) != fmt.Sprint(w) { // NaN is not equal to itself
			t.Fatalf("%x: metadata %s %v, protobuf %v", data, ns, g, w)
		}
	}
	if _, ok := got.metadata("nobody"); ok {
		t.Fatalf("%x: metadata that is not there", data)
	}
}

// rich is a message with everything that the codec reads, and what it skips.
func rich() *extprocv3.ProcessingRequest {
	in := chatHead("X-Mixed-Case", "a", "empty", "")
	in.GetRequestHeaders().Headers.Headers = append(in.GetRequestHeaders().Headers.Headers,
		&corev3.HeaderValue{Key: "old", Value: "by value"}, &corev3.HeaderValue{Key: "both", Value: "v", RawValue: []byte("raw \xff")}, &corev3.HeaderValue{})
	in.GetRequestHeaders().EndOfStream = true
	in.ProtocolConfig = bodies(2, 4)
	in.ObservabilityMode = true
	list, _ := structpb.NewList([]any{"x"}) // of kinds that it takes
	in.Attributes = map[string]*structpb.Struct{
		"another": {Fields: map[string]*structpb.Value{"no": structpb.NewStringValue("no")}},
		attributesOf: {Fields: map[string]*structpb.Value{
			"text": structpb.NewStringValue("träger"), "number": structpb.NewNumberValue(1e21), "zero": structpb.NewNumberValue(0),
			"nan": structpb.NewNumberValue(math.NaN()), "yes": structpb.NewBoolValue(true), "no": structpb.NewBoolValue(false),
			"null": structpb.NewNullValue(), "list": structpb.NewListValue(list), "struct": structpb.NewStructValue(&structpb.Struct{}), "none": {},
		}},
	}
	in.MetadataContext.FilterMetadata["x"] = &structpb.Struct{Fields: map[string]*structpb.Value{"list": structpb.NewListValue(list)}}
	in.MetadataContext.FilterMetadata["empty"] = &structpb.Struct{}
	in.MetadataContext.TypedFilterMetadata = map[string]*anypb.Any{"typed": {TypeUrl: "type.googleapis.com/x", Value: []byte("x")}}
	return in
}

func TestCodecReads(t *testing.T) {
	all := append(script(), rich(), &extprocv3.ProcessingRequest{}, attributes(answered("200", via, false), "xds.route_name", "chat"))
	rng := rand.New(rand.NewPCG(1, 2))
	for _, m := range all {
		data := marshal(t, m)
		readAlike(t, data)
		for range 500 { // broken in one place
			b := bytes.Clone(data)
			if len(b) > 0 {
				b[rng.IntN(len(b))] = byte(rng.Uint32())
				b = b[:len(b)-rng.IntN(2)*rng.IntN(len(b))]
			}
			readAlike(t, b)
		}
	}
}

func TestCodecRefuses(t *testing.T) {
	head := marshal(t, chatHead())
	field := func(num protowire.Number, content string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), content)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"nothing":          {nil, errNoPhase},
		"cut":              {head[:len(head)-1], errMalformed},
		"two kinds":        {append(bytes.Clone(head), field(4, "")...), errRepeated},
		"headers twice":    {append(bytes.Clone(head), head...), errRepeated},
		"config twice":     {slices.Concat(head, field(11, ""), field(11, "")), errRepeated},
		"name not UTF-8":   {field(2, string(field(1, string(field(1, "\x0a\x01\xff"))))), errNotUTF8},
		"header cut":       {field(2, string(field(1, "\x0a\x05x"))), errMalformed},
		"kind of a number": {protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1), errNoPhase},
	} {
		if _, err := decode(c.data); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestCodecKeepsNothing(t *testing.T) {
	for _, m := range append(script(), rich()) {
		data := marshal(t, m)
		got, err := decode(data)
		if err != nil {
			t.Fatal(err)
		}
		clear(data) // the buffer goes back to its pool
		want, _ := readByProtobuf(m)
		if !slices.Equal(got.header, want.header) || !bytes.Equal(got.body, want.body) ||
			!maps.Equal(maps.Collect(got.attributes), maps.Collect(want.attributes)) {
			t.Fatalf("%v changed with its buffer", m)
		}
	}
}

// anyReply draws a reply.
func anyReply(rng *rand.Rand) *reply {
	word := func() string {
		return []string{"", "a", "content-length", "x\ny", "träger", "\xff", string(bytes.Repeat([]byte("long "), 400))}[rng.IntN(7)]
	}
	fields := func() []field {
		var f []field
		for range rng.IntN(4) {
			f = append(f, field{name: []string{"", "a", "x-weir-pool"}[rng.IntN(3)], value: word()})
		}
		return f
	}
	r := &reply{phase: requestHeaders + phase(rng.IntN(int(numPhases-requestHeaders)))}
	switch rng.IntN(5) {
	case 0:
		return r
	case 1:
		r.timeout = time.Duration(rng.Int64N(int64(time.Minute))) + 1
		return r
	case 2:
		r.immediate = &immediate{status: 200 + rng.IntN(400), grpc: rng.IntN(18) - 1, header: fields(), body: []byte(word()), details: "weir_x"}
	case 3:
		r.replace, r.body = true, []byte(word())
		fallthrough
	default:
		r.clearRoute = rng.IntN(2) == 0
		r.set = fields()
		for range rng.IntN(3) {
			r.remove = append(r.remove, []string{"", "x-weir-class"}[rng.IntN(2)])
		}
	}
	for i := range rng.IntN(3) {
		ns := namespace{name: fmt.Sprint("weir.", i)}
		for j := range rng.IntN(5) {
			ns.fields = append(ns.fields, []datum{
				text(fmt.Sprint(j), word()), number(fmt.Sprint(j), rng.Float64()), number(fmt.Sprint(j), 0),
				truth(fmt.Sprint(j), true), truth(fmt.Sprint(j), false)}[rng.IntN(5)])
		}
		r.metadata = append(r.metadata, ns)
	}
	return r
}

func TestCodecWrites(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		r := anyReply(rng)
		got, want := unmarshal(t, encode(r)), writtenByProtobuf(r)
		if !proto.Equal(got, want) {
			t.Fatalf("%+v:\n%v, want\n%v", r, got, want)
		}
	}
}
