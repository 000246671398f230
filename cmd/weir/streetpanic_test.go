package main

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A panic in a stream of an Envoy, or in what reads its messages, ends that
// stream alone.
func TestStreamThatPanics(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	server := grpc.NewServer()
	ending := make(chan struct{})
	r := careful{endable{server, ending}, log}
	r.RegisterService(&grpc.ServiceDesc{ServiceName: "odd", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Stream", ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			if err := s.RecvMsg(new(emptypb.Empty)); err != nil {
				return err
			}
			panic("odd")
		},
	}}}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	defer func() { server.Stop(); <-done }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for range 2 {
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/odd/Stream")
		if err == nil {
			err = s.SendMsg(new(emptypb.Empty))
		}
		if err == nil {
			err = s.RecvMsg(new(emptypb.Empty))
		}
		if err == io.EOF || status.Code(err) != codes.Internal {
			t.Errorf("%v, want an internal error", err)
		}
	}
	if !strings.Contains(out.String(), "panic: odd at") || !strings.Contains(out.String(), "stream=Stream") {
		t.Errorf("log: %s", out.String())
	}
	// What is read panics.
	if err := (carefulStream{nil}).RecvMsg(nil); err == nil || !strings.Contains(err.Error(), "panic") {
		t.Errorf("%v, want the panic", err)
	}
}
