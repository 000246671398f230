package watch

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoiface"
	"google.golang.org/protobuf/types/known/emptypb"
)

// frame is a message that keeps its bytes as they came, for wire.go to read:
// to gRPC's codec a message like any other, which brings its own way to be
// read, as generated ones may. Its buffer is used again by the next.
type frame struct{ bytes []byte }

// Reset keeps the buffer.
func (f *frame) Reset() { f.bytes = f.bytes[:0] }

// ProtoReflect is that of an empty message, but for how it is read.
func (f *frame) ProtoReflect() protoreflect.Message {
	return frameReflect{Message: new(emptypb.Empty).ProtoReflect(), frame: f}
}

type frameReflect struct {
	protoreflect.Message
	frame *frame
}

func (r frameReflect) Interface() protoreflect.ProtoMessage { return r.frame }

func (r frameReflect) ProtoMethods() *protoiface.Methods {
	return &protoiface.Methods{Unmarshal: func(in protoiface.UnmarshalInput) (protoiface.UnmarshalOutput, error) {
		r.frame.bytes = append(r.frame.bytes[:0], in.Buf...)
		return protoiface.UnmarshalOutput{Flags: protoiface.UnmarshalInitialized}, nil
	}}
}
