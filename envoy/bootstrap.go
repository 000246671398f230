package envoy

import (
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/policy"
)

// bootstrapParts are the items of layered_runtime.layers and of stats_sinks
// that a policy needs, as YAML; "" = none.
func bootstrapParts(p *policy.Policy) (layers, sinks string, err error) {
	if x := p.Envoy.XDS; x != nil {
		if layers, err = itemOf(runtimeLayer(x.Layer), "  "); err != nil {
			return "", "", err
		}
	}
	if p.Envoy.Watch.Metrics {
		sinks, err = itemOf(metricsSink(), "")
	}
	return layers, sinks, err
}

// runtimeLayer is the channel of numbers (B10).
func runtimeLayer(name string) *bootstrapv3.RuntimeLayer {
	return &bootstrapv3.RuntimeLayer{Name: name, LayerSpecifier: &bootstrapv3.RuntimeLayer_RtdsLayer_{
		RtdsLayer: &bootstrapv3.RuntimeLayer_RtdsLayer{Name: name, RtdsConfig: configSource()},
	}}
}

// metricsSink is what the watch hears (B7, B8). Tags stay in the names: as
// labels Envoy would cut a cluster's name at its first dot.
func metricsSink() *metricsv3.StatsSink {
	return &metricsv3.StatsSink{
		Name: "envoy.stat_sinks.metrics_service",
		ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: packed(&metricsv3.MetricsServiceConfig{
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcService:         grpcService(),
			HistogramEmitMode:   metricsv3.HistogramEmitMode_SUMMARY,
		})},
	}
}

func itemOf(m proto.Message, indent string) (string, error) {
	doc, err := documentOf(m)
	if err != nil {
		return "", err
	}
	return doc.item(indent), nil
}
