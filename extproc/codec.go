package extproc

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec is the gRPC port's codec: the messages of side streams are read
// (read.go) and written (write.go) by hand, without an object for each of
// their fields, because those would be most of what a stream costs. The other
// services' messages are protobuf's as ever. The bytes are the same: the tests
// hold both directions against protobuf.
type codec struct{ encoding.CodecV2 }

// withCodec makes a server speak it.
func withCodec() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)})
}

// inbound is a message as it comes from the wire, decoded: a message that
// cannot be read is the conversation's to refuse.
type inbound struct {
	message
	err error
}

// outbound is an encoded message.
type outbound []byte

// Unmarshal reads a message; nothing of data is kept.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inbound)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	in.message, in.err = decode(buf.ReadOnlyData())
	return nil
}

// Marshal hands a message's bytes on; they must not change any more.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*outbound)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*out)}, nil
}
