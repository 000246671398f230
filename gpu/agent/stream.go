package agent

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// ping is how long an agent may be silent before it must answer a ping; the
// agent allows as much.
const ping = 10 * time.Second

// watch listens until the stream breaks. heard says whether a snapshot came.
func (s *Source) watch(ctx context.Context, conn *grpc.ClientConn) (heard bool, err error) {
	// A fifth of the period is how old a reading can be before it is looked at.
	stream, err := gpuv1.NewAgentClient(conn).Watch(ctx, &gpuv1.WatchRequest{Period: durationpb.New(s.cfg.Every / 5)})
	if err != nil {
		return false, err
	}
	var way transit
	for {
		w, err := stream.Recv()
		if err != nil {
			return heard, err
		}
		heard = true
		now := time.Now()
		late := way.took(now, w.GetSent().AsDuration())
		s.hear(w, now.Add(-late-max(w.GetAge().AsDuration(), 0)))
	}
}
