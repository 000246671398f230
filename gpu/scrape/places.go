package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/gpu"
)

// Places says which model endpoint a card serves: by a label of its series,
// else by a file, else all the same.
//
// The file is a YAML map from a card to an endpoint; a card is named by its
// ID or as host/index, each with /instance behind it for one MIG instance.
// The longer name counts. The file is read again when it changes. It is not
// safe for concurrent use.
type Places struct {
	fixed string
	file  watched
	named map[string]string
}

// NewPlaces reads the file, if there is one.
func NewPlaces(fixed, file string) (*Places, error) {
	p := &Places{fixed: fixed, file: watched{path: file, most: maxPlaces}}
	if err := p.Refresh(); err != nil {
		return nil, fmt.Errorf("endpointsFile: %w", err)
	}
	return p, nil
}

// maxPlaces bounds the file, in bytes.
const maxPlaces = 1 << 20

// Refresh follows the file. On an error what was known stays.
func (p *Places) Refresh() error {
	text, changed, err := p.file.read()
	if err != nil || !changed {
		return err
	}
	var named map[string]string
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&named); err != nil && !errors.Is(err, io.EOF) {
		return p.file.spoil(fmt.Errorf("%s: %w", p.file.path, err))
	}
	p.named = named
	return nil
}

// Of is the endpoint of a card; label is what its series name.
func (p *Places) Of(d *gpu.Card, label string) string {
	if label != "" {
		return label
	}
	if len(p.named) > 0 {
		place := d.Host + "/" + d.Index
		if d.Instance != "" {
			for _, key := range []string{d.ID + "/" + d.Instance, place + "/" + d.Instance} {
				if e := p.named[key]; e != "" {
					return e
				}
			}
		}
		for _, key := range []string{d.ID, place} {
			if e := p.named[key]; e != "" {
				return e
			}
		}
	}
	return p.fixed
}
