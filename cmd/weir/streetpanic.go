package main

import (
	"log/slog"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/nopanic"
)

// careful registers services of streams whose panic ends their stream alone,
// with an internal error and a line in the log.
type careful struct {
	grpc.ServiceRegistrar
	log *slog.Logger
}

// RegisterService implements grpc.ServiceRegistrar.
func (c careful) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Streams = slices.Clone(desc.Streams)
	for i := range d.Streams {
		handle, name := d.Streams[i].Handler, d.Streams[i].StreamName
		d.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			var err error
			caught := catch(func() { err = handle(srv, carefulStream{stream}) })
			if caught != nil {
				c.log.Error("a stream of an Envoy is ended", "stream", name, "error", caught)
				return status.Error(codes.Internal, "weir: internal error")
			}
			return err
		}
	}
	c.ServiceRegistrar.RegisterService(&d, impl)
}

func catch(f func()) (err error) {
	defer nopanic.Catch(&err)
	f()
	return nil
}

// carefulStream makes the panic of a message an error: services read their
// streams in goroutines of their own.
type carefulStream struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (s carefulStream) RecvMsg(m any) (err error) {
	defer nopanic.Catch(&err)
	return s.ServerStream.RecvMsg(m)
}
