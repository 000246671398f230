package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
)

// noop is the yardstick: both services with grpc-go as it comes (options,
// codec, garbage collector), whose handlers decide nothing and answer with the
// smallest reply of the right kind.
type noop struct {
	authv3.UnimplementedAuthorizationServer
	extprocv3.UnimplementedExternalProcessorServer
}

func (noop) Check(context.Context, *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	return &authv3.CheckResponse{
		Status:       &rpcstatus.Status{},
		HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{}},
	}, nil
}

func (noop) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		in, err := s.Recv()
		if err != nil {
			return nil // the other side has ended
		}
		if err := s.Send(sameKind(in)); err != nil {
			return err
		}
	}
}

func sameKind(in *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	out := &extprocv3.ProcessingResponse{}
	switch in.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		out.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
	case *extprocv3.ProcessingRequest_RequestBody:
		out.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		out.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
	case *extprocv3.ProcessingRequest_ResponseBody:
		out.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		out.Response = &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		out.Response = &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}
	}
	return out
}

// serveNoop is the child process: gRPC and the Go runtime's metrics on the
// two sockets, until it is killed.
func serveNoop(grpcSocket, adminSocket string) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	admin, err := net.Listen("unix", adminSocket)
	if err != nil {
		return err
	}
	go func() {
		fmt.Fprintln(os.Stderr, http.Serve(admin, mux))
		os.Exit(1)
	}()
	l, err := net.Listen("unix", grpcSocket)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	authv3.RegisterAuthorizationServer(s, noop{})
	extprocv3.RegisterExternalProcessorServer(s, noop{})
	return s.Serve(l)
}
