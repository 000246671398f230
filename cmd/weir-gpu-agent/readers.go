package main

import (
	"log/slog"

	"github.com/weirproxy/weir/gpu/dcgm"
	"github.com/weirproxy/weir/gpu/library"
	"github.com/weirproxy/weir/gpu/nvml"
	"github.com/weirproxy/weir/gpu/script"
)

// readers are the choices of --source, best first.
func readers(o *options, log *slog.Logger) ([]choice, error) {
	byDCGM := choice{"dcgm", func() (reader, error) { return opened(dcgm.Open(dcgmConfig(o, log))) }}
	byNVML := choice{"nvml", func() (reader, error) { return opened(nvml.Open(library.Config{Host: o.host, Log: log})) }}
	switch o.source {
	case "script":
		s, err := script.Load("script", o.script)
		if err != nil {
			return nil, err
		}
		return []choice{{"script", func() (reader, error) { return s, nil }}}, nil
	case "dcgm":
		return []choice{byDCGM}, nil
	case "nvml":
		return []choice{byNVML}, nil
	}
	return []choice{byDCGM, byNVML}, nil
}

// opened keeps a nil pointer from becoming a reader that is not nil.
func opened[R reader](r R, err error) (reader, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

func dcgmConfig(o *options, log *slog.Logger) dcgm.Config {
	c := dcgm.Config{Config: library.Config{Host: o.host, Log: log}, Engine: o.engine, Every: o.every}
	switch o.dcgm {
	case "embedded":
		c.Mode = dcgm.Embedded
	case "started":
		c.Mode = dcgm.Started
	default:
		c.Mode, c.Address = dcgm.Standalone, o.dcgm
	}
	return c
}
